/** Two jobs picked to be compared, and the bar that leads there. */

import { h } from "../dom.js"
import { contained } from "../words.js"

const WANTED = 2

/** The picked jobs with one more or less; the oldest one goes when there are too many. */
export function picked(picks, jobId) {
  if (picks.has(jobId)) return new Set([...picks].filter((each) => each !== jobId))
  return new Set([...picks, jobId].slice(-WANTED))
}

/** The bar while jobs are picked; `nameOf` gives a job's name. */
export function picksBar(picks, nameOf, onend) {
  const names = [...picks].map((jobId) => contained(nameOf(jobId)))
  return h(
    "div",
    { class: "picks", "data-key": "picks" },
    h("span", {}, names.length ? names.join(" against ") : "Pick two jobs to compare.", names.length === 1 && " against one more"),
    h("button", { class: "button", type: "button", onclick: onend }, "Cancel"),
    picks.size === WANTED && h("a", { class: "button is-primary", href: address([...picks]) }, "Compare these two"),
  )
}

function address([a, b]) {
  return `/compare?${new URLSearchParams({ a: `${a}:latest`, b: `${b}:latest` })}`
}
