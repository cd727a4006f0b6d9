/** The cards of active alerts and of past transitions, with tabs between them and their filters. */

import { figureOf, KINDS, withoutName } from "../../components/alerts/words.js"
import { segments } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { readAddress } from "../../lib/address.js"
import { h } from "../../lib/dom.js"
import { ago, clock, contained } from "../../lib/formatting.js"
import { transitionWords } from "./active-alerts.js"

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
  ["assigned", "Assigned"],
  ["note", "Notes"],
]

/** The lists that the page shows, by their name in the address; the first is the default. */
export const LISTS = ["firing", "pending", "resolved", "history"]

/** The list in the address. */
export function listInAddress() {
  const { show } = readAddress("show")
  return LISTS.includes(show) ? show : LISTS[0]
}

const TITLES = { firing: "Firing", pending: "Pending", resolved: "Resolved", history: "History" }

/** Tabs of the lists; `numbers` are counts by list, as text. */
export function listTabs(numbers, act) {
  const choices = LISTS.map((name) => [name, [TITLES[name], numbers[name]].filter(Boolean).join(" ")])
  return segments("Alerts shown", choices, listInAddress(), (show) => act.show(show))
}

/** The card of firing or pending alerts; `groups` are drawn by job, null where nothing matches. */
export function activeCard({ groups, tabs, act, onMore }) {
  const list = listInAddress()
  const { severity, find } = readAddress("severity", "find")
  const pick = h(
    "select",
    { class: "field", "aria-label": "Severity", onchange: (event) => act.choose({ severity: event.target.value }) },
    SEVERITY_CHOICES.map(([value, text]) => h("option", { value, selected: value === (severity ?? "") }, text)),
  )
  const none = severity || find ? `No ${list} alert matches the filter.` : `No ${list} alerts.`
  return h(
    "section",
    { class: "card list", "data-key": list, "aria-label": TITLES[list] },
    h("header", {}, h("h2", {}, TITLES[list]), tabs, pick, search("Search by job", find, act.find)),
    groups ?? h("p", { class: "none" }, none),
    onMore && more(onMore),
  )
}

/** The card of transitions: only those to resolved, or all of them. */
export function historyCard({ past, tabs, act, onMore }) {
  const list = listInAddress()
  const { kind, q } = readAddress("kind", "q")
  const isAll = list === "history"
  const none = isAll ? "No alert has fired yet." : "No alert has resolved yet."
  return h(
    "section",
    { class: "card list", "data-key": list, "aria-label": TITLES[list] },
    h(
      "header",
      {},
      h("h2", {}, TITLES[list]),
      tabs,
      isAll && segments("Kind of transition", KIND_CHOICES, kind ?? "", (value) => act.choose({ kind: value })),
      search("Search the history by job", q, act.type),
    ),
    past.items.length
      ? transitionRows(past.items)
      : h("p", { class: "none" }, (isAll && kind) || q ? "No transition matches the filter." : none),
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
  const by = transitionWords({ kind, actor, reason })
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
