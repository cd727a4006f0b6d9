/** The cards of the alerts page: what is not at rest now, and what was. */

import { h } from "../dom.js"
import { chosen } from "../selection.js"
import { alertRows } from "./alert-rows.js"
import { segments } from "./segments.js"

const PHASES = [["", "All"], ["firing", "Firing"], ["pending", "Pending"]]
const SEVERITIES = [["", "Any severity"], ["critical", "Critical"], ["warning", "Warning"], ["info", "Info"]]
const KINDS = [["", "All"], ["firing", "Began"], ["resolved", "Resolved"], ["acknowledged", "Acknowledged"]]

/** The card of now; `rows` is its list, null where nothing fits, `onMore` null where all is shown. */
export function nowCard({ rows, act, onMore }) {
  const { phase, severity, find } = chosen("phase", "severity", "find")
  const isFiltered = phase || severity || find
  const pick = h("select", { class: "field", "aria-label": "Severity", onchange: (event) => act.choose({ severity: event.target.value }) }, SEVERITIES.map(([value, text]) => h("option", { value, selected: value === (severity ?? "") }, text)))
  return h(
    "section",
    { class: "card list", "data-key": "now", "aria-label": "Now" },
    h("header", {}, h("h2", {}, "Now"), segments("Phase", PHASES, phase ?? "", (value) => act.choose({ phase: value })), pick, search("Search what fires by job", find, act.find)),
    rows ?? h("p", { class: "none" }, isFiltered ? "No alert of now fits the filter." : "No alert fires, and none is pending."),
    onMore && more(onMore),
  )
}

/** The card of transitions. */
export function historyCard({ past, act, onMore }) {
  const { kind, q } = chosen("kind", "q")
  return h(
    "section",
    { class: "card list", "data-key": "history", "aria-label": "History" },
    h("header", {}, h("h2", {}, "History"), segments("Kind of transition", KINDS, kind ?? "", (value) => act.choose({ kind: value })), search("Search the history by job", q, act.type)),
    past.items.length ? alertRows(past.items) : h("p", { class: "none" }, kind || q ? "No alert fits the filter." : "No alert has fired so far."),
    onMore && more(onMore),
  )
}

function search(label, value, oninput) {
  return h("input", { class: "field", type: "search", placeholder: "Part of a job's id", "aria-label": label, value: value ?? "", maxlength: 128, oninput })
}

const more = (onclick) => h("button", { class: "button more", type: "button", onclick }, "Show more")
