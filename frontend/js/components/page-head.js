/** The headline of a page, and the tabs of pages that belong together. */

import { h } from "../lib/dom.js"
import { tidy } from "../lib/formatting.js"
import { timed } from "../lib/times.js"
import { stateIcon, stateLabel } from "./state-icon.js"

/** State icon (if any), sentence and a line under it; `marked` is an icon and a word other than a job's state. */
export function headline({ state = null, marked = null, sentence, sub = "" }) {
  return h(
    "section",
    { class: "headline" },
    state && stateLabel(state),
    marked && h("span", { class: "state" }, stateIcon(marked[0]), marked[1]),
    h("h1", {}, timed(tidy(sentence))),
    sub && h("p", {}, timed(tidy(sub))),
  )
}

const VIEWS = {
  Alerts: [
    ["/alerts", "Now"],
    ["/alerts/rules", "Rules"],
    ["/alerts/receivers", "Receivers"],
  ],
  Settings: [
    ["/settings", "Settings"],
    ["/settings/audit", "Audit"],
    ["/status", "Status"],
  ],
}

/** A headline with the links to the pages of its subject ("Alerts", "Settings") beside it. */
export function pageTop(subject, words) {
  return h(
    "div",
    { class: "view-top", "data-key": "top" },
    headline(words),
    h(
      "nav",
      { class: "segments views", "aria-label": `Pages of ${subject.toLowerCase()}` },
      VIEWS[subject].map(viewLink),
    ),
  )
}

function viewLink([href, text]) {
  return h("a", { href, "aria-current": location.pathname === href && "page" }, text)
}
