/** For how long the project keeps what it has. */

import { h } from "../dom.js"
import { clock } from "../words.js"

const FIELDS = [
  { name: "raw_days", label: "Operations of closed windows", usual: "usual_raw_days", has: "has_own_raw_days", note: "timelines and what-if questions need them" },
  { name: "results_days", label: "Windows, runs and alerts", usual: "usual_results_days", has: "has_own_results_days", note: "all figures of the past" },
]

/** The card with its form. */
export function retentionCard({ retention, doing, act }) {
  const isRefused = doing.refused?.form === "retention"
  return h(
    "section",
    { class: "card", "data-key": "retention", "aria-label": "Retention" },
    h("header", {}, h("h2", {}, "How long things are kept"), h("span", { class: "explanation" }, "in days; empty: as the service says")),
    h(
      "form",
      { class: "form", onsubmit: act.keep, oninput: () => (doing.isShort || doing.saved) && act.set({ isShort: false, saved: null }) },
      h("div", { class: "fields" }, FIELDS.map((field) => fieldOf(field, retention))),
      doing.isShort && h("p", { class: "warning", role: "alert" }, "That is shorter than now. What is older goes within the hour, and cannot be brought back."),
      isRefused && h("p", { class: "refused", role: "alert" }, doing.refused.text),
      h("div", { class: "acts" }, h("button", { class: "button", type: "submit" }, doing.isShort ? "Keep less" : "Save"), doing.saved && h("span", { class: "quiet" }, `Saved at ${clock(doing.saved)}.`)),
    ),
  )
}

/** What the form says: days, or null for the service's own. */
export function retentionOf(form) {
  return Object.fromEntries(FIELDS.map(({ name }) => [name, form.elements[name].value === "" ? null : Number(form.elements[name].value)]))
}

function fieldOf({ name, label, usual, has, note }, retention) {
  const days = (number) => `${number} days`
  const own = retention[has] ? days(retention[name]) : `${days(retention[usual])}, as the service says`
  return h(
    "label",
    {},
    h("b", {}, label),
    h("input", { class: "field", name, type: "number", min: 1, max: 36500, step: "any", value: retention[has] ? retention[name] : "", placeholder: String(retention[usual]) }),
    h("small", {}, `Now ${own}; ${note}.`),
  )
}
