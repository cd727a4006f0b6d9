/** Signed-in pages: whose, from where, last used when; each can be ended. */

import { h } from "../../lib/dom.js"
import { ago, clock, contained, duration } from "../../lib/formatting.js"

/** The card; `sessions` is null where they could not be loaded. */
export function sessionsCard({ sessions, settings, state, act }) {
  return h(
    "section",
    { class: "card", "data-key": "session", "aria-label": "Sessions" },
    h("header", {}, h("h2", {}, "Sessions"), h("span", { class: "explanation" }, "pages that are signed in")),
    h(
      "p",
      {},
      `Signed in for ${duration(settings.session_hours * 3600)} at a time. `,
      "An ended session is refused everywhere within 5 seconds.",
    ),
    state.refused?.form === "session" && h("p", { class: "refused", role: "alert" }, state.refused.text),
    sessions === null && h("p", { class: "none" }, "Could not load the sessions."),
    sessions?.length === 0 && h("p", { class: "none" }, "No page is signed in with your token."),
    sessions?.length > 0 &&
      h(
        "ul",
        { class: "token-rows" },
        sessions.map((session) => row(session, act)),
      ),
    h("button", { class: "button", type: "button", onclick: act.signOut }, "Sign out"),
  )
}

function row(session, act) {
  const { session_id, token_name, user_agent, address, created_at, last_used_at, expires_at, is_current } = session
  return h(
    "li",
    { class: "row", "data-key": session_id },
    h(
      "span",
      { class: "name" },
      h("b", {}, contained(token_name)),
      h("small", {}, is_current ? "this browser" : `from ${contained(address || "an unknown address")}`),
    ),
    h("span", {}, browserName(user_agent), h("small", {}, `signed in at ${clock(new Date(created_at))}`)),
    h(
      "span",
      {},
      last_used_at ? `used ${ago(new Date(last_used_at))}` : "never used",
      h("small", {}, `until ${clock(new Date(expires_at))}`),
    ),
    h(
      "span",
      { class: "acts" },
      is_current
        ? null
        : h(
            "button",
            {
              class: "text-button",
              type: "button",
              "aria-label": `End the session of ${contained(token_name)} from ${contained(address)}`,
              onclick: () => act.endSession(session_id),
            },
            "End",
          ),
    ),
  )
}

const BROWSERS = [
  ["Edg/", "Edge"],
  ["Firefox/", "Firefox"],
  ["Chrome/", "Chrome"],
  ["Safari/", "Safari"],
]

/** The browser of a User-Agent header in one word, else the header itself. */
function browserName(userAgent) {
  const known = BROWSERS.find(([sign]) => userAgent.includes(sign))
  return known ? known[1] : contained(userAgent || "unknown program")
}
