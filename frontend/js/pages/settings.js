/** What this service does and keeps, and who may use it. */

import { getAll, getJson, send } from "../api.js"
import { noteBar } from "../components/note-bar.js"
import { panelFailed } from "../components/panel-failed.js"
import { factsCards } from "../components/settings-facts.js"
import { retentionCard, retentionOf } from "../components/retention.js"
import { tokenWanted } from "../components/token-form.js"
import { tokensCard } from "../components/tokens.js"
import { viewTop } from "../components/views.js"
import { announce, h, patch } from "../dom.js"
import { clock, contained } from "../words.js"

export const path = /^\/settings$/
export const title = "Settings"

const MOST_TOKENS = 1000

/** Draw the page into `root`; gives back how to leave. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { settings: null, tokens: null, tokensRefused: null, error: null, left: false }
  // What the reader is in the middle of: the token just made, one about to be revoked, a refusal.
  const doing = { made: null, revoking: null, refused: null, isShort: false, saved: null, withRevoked: false }
  const draw = () => {
    if (page.left) return
    if (page.settings) patch(root, content(page, doing, act))
    else if (page.error) patch(root, viewTop("Settings", { sentence: "Settings" }), panelFailed("Could not load the settings", page.error, refresh))
  }
  const refresh = async () => {
    try {
      await load(page)
    } catch (error) {
      if (error.status === 401) return onRefused()
      page.error = error
    }
    draw()
  }
  /** Do something that changes; a refusal shows beside its form. */
  const change = async (form, deed) => {
    doing.refused = null
    try {
      await deed()
    } catch (error) {
      if (error.status === 401) return onRefused()
      doing.refused = { form, text: error.message }
    }
    if (!page.left) await refresh()
  }
  const act = {
    refresh,
    set: (changes) => (Object.assign(doing, changes), draw()),
    create: (event) => {
      event.preventDefault()
      const form = event.target
      change("token", async () => {
        doing.made = await send("POST", "/tokens", tokenWanted(form))
        form.reset()
        announce("The token is made. It is shown this once.")
      })
    },
    revoke: (tokenId) => change("revoke", async () => (await send("DELETE", `/tokens/${encodeURIComponent(tokenId)}`), Object.assign(doing, { revoking: null }))),
    keep: (event) => {
      event.preventDefault()
      const wanted = retentionOf(event.target)
      if (isShorter(wanted, page.settings.retention) && !doing.isShort) return act.set({ isShort: true })
      change("retention", async () => {
        await send("PUT", "/settings/retention", wanted)
        Object.assign(doing, { isShort: false, saved: new Date() })
        announce("Saved.")
      })
    },
    // A new document: nothing of what the old session saw stays, nor its events.
    signOut: () => change("session", async () => {
      await send("DELETE", "/session")
      page.left = true
      location.assign("/")
    }),
  }

  setSubject({ kind: "settings" })
  refresh()
  return () => {
    page.left = true
  }
}

async function load(page) {
  const [settings, tokens] = await Promise.allSettled([getJson("/settings"), getAll("/tokens", MOST_TOKENS)])
  if (settings.reason) throw settings.reason
  if (tokens.reason?.status === 401) throw tokens.reason
  Object.assign(page, { settings: settings.value, tokens: tokens.value ?? null, tokensRefused: tokens.reason ?? null, error: null })
}

/** Whether anything would be kept for less long than now. */
function isShorter({ raw_days, results_days }, now) {
  return (raw_days ?? now.usual_raw_days) < now.raw_days || (results_days ?? now.usual_results_days) < now.results_days
}

function content({ settings, tokens, tokensRefused, error }, doing, act) {
  return [
    viewTop("Settings", {
      sentence: "Settings",
      sub: `Project ${contained(settings.project)} on Paceline ${settings.version}. What has no form here is set by PACELINE_ variables when the service starts.`,
    }),
    error && noteBar({ fact: `Shown as of ${clock(error.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: act.refresh } }),
    h(
      "div",
      { class: "settings" },
      h("div", { class: "column" }, tokensCard({ tokens, refusal: tokensRefused, doing, act }), retentionCard({ retention: settings.retention, doing, act })),
      h("div", { class: "column" }, factsCards(settings, act.signOut)),
    ),
  ]
}
