/** Transitions of alerts as rows: what began or ceased, on which job, and who or what did it. */

import { h } from "../dom.js"
import { ago, clock, contained } from "../words.js"
import { KINDS, withoutName } from "./alert-words.js"
import { mark } from "./mark.js"
import { figureOf } from "./rule-words.js"

/** The rows of a list; each leads to the window that decided. */
export function alertRows(transitions) {
  return h("div", { class: "alert-rows" }, transitions.map(row))
}

function row(transition) {
  const { event_id, on, job_id, window_id, kind, rule, subject, actor, reason } = transition
  const at = new Date(transition.at)
  const [markName, word] = KINDS[kind] ?? ["not-analysed", kind]
  const job = `/jobs/${encodeURIComponent(job_id)}`
  const figure = figureOf(on, transition.value)
  const limit = figureOf(on, transition.threshold)
  const by = actor ? `by ${contained(actor)}` : reason && contained(reason)
  return h(
    "a",
    { class: "row", href: window_id ? `${job}?window=${encodeURIComponent(window_id)}` : job, "data-key": String(event_id) },
    h("span", { class: "state" }, mark(markName), word),
    h("span", { class: "job" }, h("b", {}, contained(job_id)), h("small", {}, withoutName(transition))),
    h("span", { class: "number" }, figure && h("b", {}, figure), limit && h("small", {}, `limit ${limit}`)),
    h("span", { class: "at" }, ago(at), h("small", {}, clock(at))),
    h("span", { class: "by" }, contained(rule), subject && `, ${contained(subject)}`, by && h("small", {}, by)),
  )
}
