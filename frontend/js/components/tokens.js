/** The project's tokens: who may do what, and an end to it. */

import { h } from "../dom.js"
import { ago, clock, contained, counted } from "../words.js"
import { shownOnce } from "./shown-once.js"
import { tokenForm } from "./token-form.js"

/** The card; `tokens` is null where they may not be seen, and `refusal` says why. */
export function tokensCard({ tokens, refusal, doing, act }) {
  return h(
    "section",
    { class: "card tokens", "data-key": "tokens", "aria-label": "Tokens" },
    h("header", {}, h("h2", {}, "Tokens"), h("span", { class: "explanation" }, "who may do what in this project")),
    tokens ? withTokens(tokens, doing, act) : notShown(refusal, act.refresh),
  )
}

function notShown(refusal, retry) {
  const isForbidden = refusal.status === 403
  return h(
    "div",
    { class: "panel-state" },
    h("b", {}, isForbidden ? "Not shown with your token" : "Could not load the tokens"),
    h("p", {}, isForbidden ? "Tokens are for those whose token has the scope admin. Sign in with one to see them." : refusal.message),
    !isForbidden && h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}

function withTokens(tokens, doing, act) {
  const good = tokens.filter((token) => !isOver(token))
  const old = tokens.length - good.length
  const shown = doing.withRevoked ? tokens : good
  return [
    doing.made && shownOnce({ words: `${contained(doing.made.name)} is made. This is its text, shown this once:`, text: doing.made.token, onDone: () => act.set({ made: null }) }),
    shown.length ? h("ul", { class: "token-rows" }, shown.map((token) => row(token, doing, act))) : h("p", { class: "none" }, "No token is in use but the one that the service was started with."),
    old > 0 && h("button", { class: "text-button", type: "button", onclick: () => act.set({ withRevoked: !doing.withRevoked }) }, doing.withRevoked ? "Hide old tokens" : `Show ${counted(old, "old token")}`),
    tokenForm(act.create, doing.refused?.form === "token" && doing.refused.text),
  ]
}

const isOver = ({ revoked_at, expires_at }) => revoked_at !== null || (expires_at !== null && new Date(expires_at) <= new Date())

function row(token, doing, act) {
  const { token_id, name, scopes, job, last_used_at } = token
  const where = job ? `only for the job ${contained(job)}` : "all jobs"
  return h(
    "li",
    { class: "row", "data-key": token_id },
    h("span", { class: "name" }, h("b", {}, contained(name)), h("small", {}, `pl_${token_id}\u2026`)),
    h("span", {}, scopes.join(", "), h("small", {}, where)),
    h("span", {}, last_used_at ? `used ${ago(new Date(last_used_at))}` : "never used", h("small", {}, until(token))),
    h("span", { class: "acts" }, isOver(token) ? null : revoking(token_id, name, doing, act)),
  )
}

function until({ created_at, expires_at, revoked_at }) {
  if (revoked_at) return `revoked at ${clock(new Date(revoked_at))}`
  if (expires_at) return `${new Date(expires_at) <= new Date() ? "over since" : "good until"} ${clock(new Date(expires_at))}`
  return `made at ${clock(new Date(created_at))}`
}

/** Revoking cannot be undone, so it is asked for twice. */
function revoking(tokenId, name, doing, act) {
  if (doing.revoking !== tokenId) return h("button", { class: "text-button", type: "button", "data-key": "ask", "aria-label": `Revoke ${contained(name)}`, onclick: () => act.set({ revoking: tokenId, refused: null }) }, "Revoke")
  return [
    doing.refused?.form === "revoke" && h("span", { class: "refused", role: "alert", "data-key": "refused" }, doing.refused.text),
    h("button", { class: "button is-risky", type: "button", "data-key": "yes", onclick: () => act.revoke(tokenId) }, "Revoke for good"),
    h("button", { class: "text-button", type: "button", "data-key": "no", onclick: () => act.set({ revoking: null }) }, "Keep"),
  ]
}
