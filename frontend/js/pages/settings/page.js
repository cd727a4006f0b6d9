/** Settings of the service and the project: tokens, retention, and what only the operator can change. */

import { panelFailed, staleNote } from "../../components/notices.js"
import { pageTop } from "../../components/page-head.js"
import { getAll, getJson, send } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"
import { factsCards, retentionCard, retentionOf } from "./cards.js"
import { sessionsCard } from "./sessions.js"
import { sharesCard } from "./shares.js"
import { tokensCard, tokenWanted } from "./tokens.js"

const MOST_TOKENS = 1000
const MAX_SHARES = 200

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { settings: null, tokens: null, tokensRefused: null, error: null, left: false }
  // The state of forms: the token just created, one about to be revoked, a refusal.
  const state = { created: null, revoking: null, refused: null, isShort: false, saved: null, withRevoked: false }
  const draw = () => {
    if (page.left) return
    if (page.settings) patch(root, content(page, state, act))
    else if (page.error)
      patch(
        root,
        pageTop("Settings", { sentence: "Settings" }),
        panelFailed("Could not load the settings", page.error, refresh),
      )
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
  /** Change something on the server; a refusal shows beside its form. */
  const change = async (form, request) => {
    state.refused = null
    try {
      await request()
    } catch (error) {
      if (error.status === 401) return onRefused()
      state.refused = { form, text: error.message }
    }
    if (!page.left) await refresh()
  }
  const act = {
    refresh,
    set: (changes) => {
      Object.assign(state, changes)
      draw()
    },
    create: (event) => {
      event.preventDefault()
      const form = event.target
      change("token", async () => {
        state.created = await send("POST", "/tokens", tokenWanted(form))
        form.reset()
        announce("The token is created. It is shown only once.")
      })
    },
    revoke: (tokenId) =>
      change("revoke", async () => {
        await send("DELETE", `/tokens/${encodeURIComponent(tokenId)}`)
        state.revoking = null
      }),
    revokeShare: (shareId) =>
      change("share", async () => {
        await send("DELETE", `/shares/${encodeURIComponent(shareId)}`)
        state.revokingShare = null
        announce("The link is revoked.")
      }),
    keep: (event) => {
      event.preventDefault()
      const wanted = retentionOf(event.target)
      if (isShorter(wanted, page.settings.retention) && !state.isShort) return act.set({ isShort: true })
      change("retention", async () => {
        await send("PUT", "/settings/retention", wanted)
        Object.assign(state, { isShort: false, saved: new Date() })
        announce("Saved.")
      })
    },
    endSession: (sessionId) =>
      change("session", async () => {
        await send("DELETE", `/sessions/${encodeURIComponent(sessionId)}`)
        announce("The session is ended.")
      }),
    // A new document, so that no data and no event of the old session stays.
    signOut: () =>
      change("session", async () => {
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
  const [settings, tokens, shares, sessions] = await Promise.allSettled([
    getJson("/settings"),
    getAll("/tokens", MOST_TOKENS),
    getAll("/shares", MAX_SHARES),
    getJson("/sessions"),
  ])
  if (settings.reason) throw settings.reason
  if (tokens.reason?.status === 401) throw tokens.reason
  Object.assign(page, {
    settings: settings.value,
    tokens: tokens.value ?? null,
    shares: shares.value ?? null,
    sessions: sessions.value?.items ?? null,
    tokensRefused: tokens.reason ?? null,
    error: null,
  })
}

/** Whether something that is stored now would go. */
function isShorter({ raw_days, results_days, max_gb }, now) {
  const isSmaller = (max_gb ?? now.usual_max_gb ?? Infinity) < now.stored_gb
  const isOlder = (days, name) => (days ?? now[`usual_${name}`]) < now[name]
  return isSmaller || isOlder(raw_days, "raw_days") || isOlder(results_days, "results_days")
}

function content({ settings, tokens, tokensRefused, shares, sessions, error }, state, act) {
  return [
    pageTop("Settings", {
      sentence: "Settings",
      sub:
        `Project ${contained(settings.project)} on Paceline ${settings.version}. ` +
        "Other settings are PACELINE_ variables, read when the service starts.",
    }),
    error && staleNote(error, act.refresh),
    h(
      "div",
      { class: "settings" },
      h(
        "div",
        { class: "column" },
        tokensCard({ tokens, refusal: tokensRefused, state, act }),
        sharesCard({ shares, state, act }),
        retentionCard({ retention: settings.retention, state, act }),
      ),
      h("div", { class: "column" }, factsCards(settings), sessionsCard({ sessions, settings, state, act })),
    ),
  ]
}
