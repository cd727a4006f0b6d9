/** Who is told of alerts, and whether that works: in short, beside what fires. */

import { h } from "../dom.js"
import { mark } from "./mark.js"
import { healthWords, isIll, placeWords, receiverName, receiverState } from "./receiver-words.js"

const MOST = 6

/** The card; those that cannot be told come first. */
export function toldCard(endpoints) {
  const ordered = [...endpoints].sort((a, b) => isIll(b) - isIll(a))
  const more = ordered.length - MOST
  return h(
    "section",
    { class: "card told-card", "data-key": "told", "aria-label": "Who is told" },
    h("header", {}, h("h2", {}, "Who is told"), h("a", { class: "toggle", href: "/alerts/receivers" }, "Receivers and messages")),
    ordered.length ? h("ul", {}, ordered.slice(0, MOST).map(row)) : nobody(),
    more > 0 && h("p", { class: "remark" }, `and ${more} more`),
  )
}

function row(endpoint) {
  const [markName, word] = receiverState(endpoint)
  return h(
    "li",
    { "data-key": endpoint.endpoint_id },
    h("span", { class: "state" }, mark(markName), word),
    h("span", {}, h("b", {}, receiverName(endpoint)), h("small", {}, isIll(endpoint) ? healthWords(endpoint) : placeWords(endpoint))),
  )
}

function nobody() {
  return h("div", { class: "panel-state" }, mark("warning"), h("b", {}, "Nobody is told"), h("p", {}, "Alerts show on this page alone until there is a receiver."))
}
