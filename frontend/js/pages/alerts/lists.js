/** The cards of active alerts and of past transitions, with their filters. */

import { figureOf, KINDS, withoutName } from "../../components/alert-words.js"
import { segments } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { readAddress } from "../../lib/address.js"
import { h } from "../../lib/dom.js"
import { ago, clock, contained } from "../../lib/formatting.js"

const PHASE_CHOICES = [
  ["", "All"],
  ["firing", "Firing"],
  ["pending", "Pending"],
]
const SEVERITY_CHOICES = [
  ["", "Any severity"],
  ["critical", "Critical"],
  ["warning", "Warning"],
  ["info", "Info"],
]
const KIND_CHOICES = [
  ["", "All"],
  ["firing", "Fired"],
  ["resolved", "Resolved"],
  ["acknowledged", "Acknowledged"],
]

/** The card of active alerts; `rows` is its list, null where nothing matches, `onMore` null where all is shown. */
export function nowCard({ rows, act, onMore }) {
  const { phase, severity, find } = readAddress("phase", "severity", "find")
  const isFiltered = phase || severity || find
  const pick = h(
    "select",
    { class: "field", "aria-label": "Severity", onchange: (event) => act.choose({ severity: event.target.value }) },
    SEVERITY_CHOICES.map(([value, text]) => h("option", { value, selected: value === (severity ?? "") }, text)),
  )
  return h(
    "section",
    { class: "card list", "data-key": "now", "aria-label": "Now" },
    h(
      "header",
      {},
      h("h2", {}, "Now"),
      segments("Phase", PHASE_CHOICES, phase ?? "", (value) => act.choose({ phase: value })),
      pick,
      search("Search active alerts by job", find, act.find),
    ),
    rows ??
      h("p", { class: "none" }, isFiltered ? "No active alert matches the filter." : "No alert is firing or pending."),
    onMore && more(onMore),
  )
}

/** The card of transitions. */
export function historyCard({ past, act, onMore }) {
  const { kind, q } = readAddress("kind", "q")
  return h(
    "section",
    { class: "card list", "data-key": "history", "aria-label": "History" },
    h(
      "header",
      {},
      h("h2", {}, "History"),
      segments("Kind of transition", KIND_CHOICES, kind ?? "", (value) => act.choose({ kind: value })),
      search("Search the history by job", q, act.type),
    ),
    past.items.length
      ? transitionRows(past.items)
      : h("p", { class: "none" }, kind || q ? "No transition matches the filter." : "No alert has fired yet."),
    onMore && more(onMore),
  )
}

function search(label, value, oninput) {
  return h("input", {
    class: "field",
    type: "search",
    placeholder: "Part of a job's id",
    "aria-label": label,
    value: value ?? "",
    maxlength: 128,
    oninput,
  })
}

const more = (onclick) => h("button", { class: "button more", type: "button", onclick }, "Show more")

/** The rows of a list; each links to the window that decided. */
function transitionRows(transitions) {
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
    {
      class: "row",
      href: window_id ? `${job}?window=${encodeURIComponent(window_id)}` : job,
      "data-key": String(event_id),
    },
    h("span", { class: "state" }, stateIcon(markName), word),
    h("span", { class: "job" }, h("b", {}, contained(job_id)), h("small", {}, withoutName(transition))),
    h("span", { class: "number" }, figure && h("b", {}, figure), limit && h("small", {}, `limit ${limit}`)),
    h("span", { class: "at" }, ago(at), h("small", {}, clock(at))),
    h("span", { class: "by" }, contained(rule), subject && `, ${contained(subject)}`, by && h("small", {}, by)),
  )
}
