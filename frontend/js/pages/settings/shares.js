/** Share links of the project, with their expiry; each can be revoked. */

import { h } from "../../lib/dom.js"
import { clock, contained, stepRange } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const STATES = { active: "Expires", expired: "Expired", revoked: "Revoked" }

/** The card; null where the project has no link. */
export function sharesCard({ shares, state, act }) {
  if (!shares?.length) return null
  return h(
    "section",
    { class: "card", "data-key": "shares", "aria-label": "Share links" },
    h(
      "header",
      {},
      h("h2", {}, "Share links"),
      h("span", { class: "explanation" }, "frozen snapshots of job pages, without their addresses"),
    ),
    state.refused?.form === "share" && h("p", { class: "refused", role: "alert" }, state.refused.text),
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Job", "Created", "Expiry", ""].map((name) => h("th", {}, name)),
        ),
      ),
      h(
        "tbody",
        {},
        shares.map((share) => shareRow(share, act)),
      ),
    ),
  )
}

function shareRow(share, act) {
  const { share_id, job_id, first_step, last_step, author, created_at, expires_at, revoked_at } = share
  const until = share.state === "revoked" ? revoked_at : expires_at
  return h(
    "tr",
    { "data-key": share_id },
    h(
      "td",
      {},
      h("a", { href: `/jobs/${encodeURIComponent(job_id)}` }, contained(job_id)),
      h("small", {}, stepRange(first_step, last_step)),
    ),
    h("td", {}, clock(new Date(created_at)), h("small", {}, contained(author))),
    h("td", {}, `${STATES[share.state]} ${clock(new Date(until))}`),
    h(
      "td",
      {},
      share.state === "active" &&
        may("write") &&
        h(
          "button",
          {
            class: "button",
            type: "button",
            "aria-label": `Revoke the link to ${contained(job_id)}`,
            onclick: () => act.revokeShare(share_id),
          },
          "Revoke",
        ),
    ),
  )
}
