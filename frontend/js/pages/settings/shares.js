/** Share links of the project: those that still open, and on request the others; each can be revoked. */

import { h } from "../../lib/dom.js"
import { clock, contained, counted, stepRange } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

/** The card; null where the project has no link. */
export function sharesCard({ shares, state, act }) {
  if (!shares?.length) return null
  const active = shares.filter((share) => share.state === "active")
  const old = shares.length - active.length
  const shown = state.withOldShares ? shares : active
  return h(
    "section",
    { class: "card", "data-key": "shares", "aria-label": "Share links" },
    h(
      "header",
      {},
      h("h2", {}, "Share links"),
      h("span", { class: "explanation" }, "frozen snapshots of job pages; their addresses are not stored"),
    ),
    state.refused?.form === "share" && h("p", { class: "refused", role: "alert" }, state.refused.text),
    shown.length
      ? h(
          "ul",
          { class: "token-rows" },
          shown.map((share) => row(share, state, act)),
        )
      : h("p", { class: "none" }, "No link opens now."),
    old > 0 &&
      h(
        "button",
        { class: "text-button", type: "button", onclick: () => act.set({ withOldShares: !state.withOldShares }) },
        state.withOldShares ? "Hide old links" : `Show ${counted(old, "old link")}`,
      ),
  )
}

function row(share, state, act) {
  const { share_id, job_id, first_step, last_step, author, created_at } = share
  return h(
    "li",
    { class: "row", "data-key": share_id },
    h(
      "span",
      { class: "name" },
      h("a", { href: `/jobs/${encodeURIComponent(job_id)}` }, contained(job_id)),
      h("small", {}, stepRange(first_step, last_step)),
    ),
    h("span", {}, `created at ${clock(new Date(created_at))}`, h("small", {}, `by ${contained(author)}`)),
    h("span", {}, until(share)),
    h("span", { class: "acts" }, share.state === "active" && may("write") ? revoking(share, state, act) : null),
  )
}

function until({ state, expires_at, revoked_at }) {
  if (state === "revoked") return `revoked at ${clock(new Date(revoked_at))}`
  return `${state === "expired" ? "expired" : "expires"} at ${clock(new Date(expires_at))}`
}

/** Revoking cannot be undone, so it is asked for twice. */
function revoking({ share_id, job_id }, state, act) {
  if (state.revokingShare !== share_id)
    return h(
      "button",
      {
        class: "text-button",
        type: "button",
        "data-key": "ask",
        "aria-label": `Revoke the link to ${contained(job_id)}`,
        onclick: () => act.set({ revokingShare: share_id, refused: null }),
      },
      "Revoke",
    )
  return [
    h(
      "button",
      { class: "button is-risky", type: "button", "data-key": "revoke", onclick: () => act.revokeShare(share_id) },
      "Revoke the link",
    ),
    h(
      "button",
      { class: "button", type: "button", "data-key": "cancel", onclick: () => act.set({ revokingShare: null }) },
      "Cancel",
    ),
  ]
}
