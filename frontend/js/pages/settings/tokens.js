/** The project's tokens: what each may do, revoking one, and the form for a new one. */

import { shownOnce } from "../../components/buttons.js"
import { h } from "../../lib/dom.js"
import { ago, clock, contained, counted } from "../../lib/formatting.js"

/** The card; `tokens` is null where they may not be seen, and `refusal` says why. */
export function tokensCard({ tokens, refusal, state, act }) {
  return h(
    "section",
    { class: "card tokens", "data-key": "tokens", "aria-label": "Tokens" },
    h("header", {}, h("h2", {}, "Tokens"), h("span", { class: "explanation" }, "and their scopes in this project")),
    tokens ? withTokens(tokens, state, act) : notShown(refusal, act.refresh),
  )
}

function notShown(refusal, retry) {
  const isForbidden = refusal.status === 403
  return h(
    "div",
    { class: "panel-state" },
    h("b", {}, isForbidden ? "Not shown with your token" : "Could not load the tokens"),
    h("p", {}, isForbidden ? "Only a token with the scope admin may list tokens. Sign in with one." : refusal.message),
    !isForbidden && h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}

function withTokens(tokens, state, act) {
  const good = tokens.filter((token) => !isOver(token))
  const old = tokens.length - good.length
  const shown = state.withRevoked ? tokens : good
  return [
    state.created &&
      shownOnce({
        words: `${contained(state.created.name)} is created. Token, shown only once:`,
        text: state.created.token,
        onDone: () => act.set({ created: null }),
      }),
    shown.length
      ? h(
          "ul",
          { class: "token-rows" },
          shown.map((token) => row(token, state, act)),
        )
      : h("p", { class: "none" }, "No tokens except the one of PACELINE_TOKEN or the data directory."),
    old > 0 &&
      h(
        "button",
        { class: "text-button", type: "button", onclick: () => act.set({ withRevoked: !state.withRevoked }) },
        state.withRevoked ? "Hide old tokens" : `Show ${counted(old, "old token")}`,
      ),
    tokenForm(act.create, state.refused?.form === "token" && state.refused.text),
  ]
}

const isOver = ({ revoked_at, expires_at }) =>
  revoked_at !== null || (expires_at !== null && new Date(expires_at) <= new Date())

function row(token, state, act) {
  const { token_id, name, scopes, job, last_used_at } = token
  const where = job ? `only for the job ${contained(job)}` : "all jobs"
  return h(
    "li",
    { class: "row", "data-key": token_id },
    h("span", { class: "name" }, h("b", {}, contained(name)), h("small", {}, `pl_${token_id}\u2026`)),
    h("span", {}, scopes.join(", "), h("small", {}, where)),
    h("span", {}, last_used_at ? `used ${ago(new Date(last_used_at))}` : "never used", h("small", {}, until(token))),
    h("span", { class: "acts" }, isOver(token) ? null : revoking(token_id, name, state, act)),
  )
}

function until({ created_at, expires_at, revoked_at }) {
  if (revoked_at) return `revoked at ${clock(new Date(revoked_at))}`
  if (expires_at)
    return `${new Date(expires_at) <= new Date() ? "expired at" : "expires at"} ${clock(new Date(expires_at))}`
  return `created at ${clock(new Date(created_at))}`
}

/** Revoking cannot be undone, so it is asked for twice. */
function revoking(tokenId, name, state, act) {
  if (state.revoking !== tokenId)
    return h(
      "button",
      {
        class: "text-button",
        type: "button",
        "data-key": "ask",
        "aria-label": `Revoke ${contained(name)}`,
        onclick: () => act.set({ revoking: tokenId, refused: null }),
      },
      "Revoke",
    )
  return [
    state.refused?.form === "revoke" &&
      h("span", { class: "refused", role: "alert", "data-key": "refused" }, state.refused.text),
    h(
      "button",
      { class: "button is-risky", type: "button", "data-key": "yes", onclick: () => act.revoke(tokenId) },
      "Revoke for good",
    ),
    h(
      "button",
      { class: "text-button", type: "button", "data-key": "no", onclick: () => act.set({ revoking: null }) },
      "Keep",
    ),
  ]
}

const SCOPES = [
  ["ingest", "send operations"],
  ["read", "see jobs"],
  ["write", "acknowledge, silence, save questions"],
  ["admin", "manage tokens, rules and receivers"],
]

/** The form; `onsubmit` gets its event, `refusal` is why the last one was refused. */
function tokenForm(onsubmit, refusal) {
  return h(
    "form",
    { class: "form token-form", onsubmit },
    h("h3", {}, "Create a token"),
    h(
      "div",
      { class: "fields" },
      h(
        "label",
        {},
        h("b", {}, "Name"),
        h("input", { class: "field", name: "name", required: true, maxlength: 256, autocomplete: "off" }),
        h("small", {}, "Where the token is used."),
      ),
      h(
        "label",
        {},
        h("b", {}, "Expires after (days)"),
        h("input", { class: "field", name: "days", type: "number", min: 0.01, max: 3650, step: "any" }),
        h("small", {}, "Empty: never."),
      ),
      h(
        "label",
        {},
        h("b", {}, "Only for job"),
        h("input", { class: "field", name: "job", maxlength: 128, autocomplete: "off" }),
        h("small", {}, "Needs the scope ingest only; empty: all jobs."),
      ),
    ),
    h("fieldset", { class: "scopes" }, h("legend", {}, "Scopes"), SCOPES.map(scope)),
    refusal && h("p", { class: "refused", role: "alert" }, refusal),
    h("button", { class: "button", type: "submit" }, "Create token"),
  )
}

/** What the form says, as POST /tokens takes it. */
export function tokenWanted({ elements }) {
  const scopes = [...elements.scope].filter((box) => box.checked).map((box) => box.value)
  const days = elements.days.value
  return {
    name: elements.name.value.trim(),
    scopes,
    job: elements.job.value.trim() || null,
    expires_days: days === "" ? null : Number(days),
  }
}

function scope([name, meaning]) {
  return h(
    "label",
    {},
    h("input", { type: "checkbox", name: "scope", value: name, checked: name === "read" }),
    h("span", {}, h("b", {}, name), ` ${meaning}`),
  )
}
