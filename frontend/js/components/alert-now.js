/** Alerts that are not at rest: what each says, who is told, and what may be done about it. */

import { h } from "../dom.js"
import { ago, clock, contained, counted, tidy } from "../words.js"
import { alertHref, stateOf, withoutName } from "./alert-words.js"
import { mark } from "./mark.js"
import { figureOf } from "./rule-words.js"

/**
 * The rows.
 *
 * `known` has `silences` by id, `alerts` by fingerprint and `told(alert)`; `chosen` is the
 * fingerprint in the address and `details` its details. `act` is null where the reader may
 * change nothing; `under(alert)` is what belongs under a row, such as the form of a silence.
 */
export function alertsNow(alerts, { known, chosen, details, act, choose, under }) {
  return h(
    "ol",
    { class: "now-rows" },
    alerts.map((alert) => row(alert, { known, isChosen: alert.fingerprint === chosen, details, act, choose, under })),
  )
}

function row(alert, { known, isChosen, details, act, choose, under }) {
  const { fingerprint, job_id, rule, subject } = alert
  const [markName, word] = stateOf(alert)
  const at = new Date(alert.firing_at ?? alert.began_at)
  const figure = figureOf(alert.on, alert.value)
  const limit = figureOf(alert.on, alert.threshold)
  return h(
    "li",
    { class: isChosen ? "row is-chosen" : "row", "data-key": fingerprint },
    h("span", { class: "state" }, mark(markName), word),
    h(
      "div",
      { class: "about" },
      h("a", { class: "job", href: jobHref(alert) }, contained(job_id)),
      h("span", { class: "quiet" }, ` ${contained(rule)}${subject && `, ${contained(subject)}`}`),
      h("p", {}, withoutName(alert)),
      alert.sub && h("p", { class: "quiet" }, tidy(contained(alert.sub))),
      h("div", { class: "notes" }, notes(alert, known)),
    ),
    h("span", { class: "number" }, figure && h("b", {}, figure), limit && h("small", {}, `limit ${limit}`)),
    h("span", { class: "at" }, ago(at), h("small", {}, clock(at))),
    h("div", { class: "acts" }, act && deeds(alert, act), runbook(alert), permalink(alert, isChosen, choose)),
    isChosen && details,
    under(alert),
  )
}

/** Who knows of it, and why not everybody does. */
function notes(alert, known) {
  const { acknowledged_at, acknowledged_by, silenced_by, inhibited_by } = alert
  const told = known.told(alert)
  return [
    acknowledged_at && note("finished", `Acknowledged by ${contained(acknowledged_by ?? "somebody")}, ${ago(new Date(acknowledged_at))}; not told again until it resolves.`),
    silenced_by.length > 0 && note("not-analysed", silencedWords(silenced_by.map((id) => known.silences.get(id)).filter(Boolean))),
    inhibited_by.length > 0 && note("not-analysed", keptBackWords(inhibited_by.map((each) => known.alerts.get(each)).filter(Boolean))),
    told && note(told.mark, told.text),
  ]
}

const note = (markName, text) => h("span", { class: "note" }, mark(markName), h("span", {}, text))

function silencedWords(silences) {
  if (!silences.length) return "Silenced: nobody is told."
  const last = silences.reduce((a, b) => (a.ends_at > b.ends_at ? a : b))
  const more = silences.length > 1 ? ` and ${counted(silences.length - 1, "more silence")}` : ""
  return `Silenced by ${contained(last.author)} until ${clock(new Date(last.ends_at))}: ${contained(last.comment)}${more}`
}

function keptBackWords(speaking) {
  if (!speaking.length) return "Kept back: another alert speaks for it."
  const [{ rule, subject }] = speaking
  return `Kept back: ${contained(rule)}${subject && ` (${contained(subject)})`} speaks for it.`
}

/** One key for acknowledging and taking it back, so that the focus stays where it is. */
function deeds(alert, { acknowledge, takeBack, silence }) {
  const { acknowledged_at, phase, job_id, rule } = alert
  const which = `${contained(rule)} on ${contained(job_id)}`
  return [
    phase === "firing" &&
      (acknowledged_at
        ? h("button", { class: "text-button", type: "button", "data-key": "acknowledge", "aria-label": `Take back the acknowledgement of ${which}`, onclick: () => takeBack(alert) }, "Take back")
        : h("button", { class: "text-button", type: "button", "data-key": "acknowledge", "aria-label": `Acknowledge ${which}`, onclick: () => acknowledge(alert) }, "Acknowledge")),
    h("button", { class: "text-button", type: "button", "data-key": "silence", "aria-label": `Silence ${which}`, onclick: () => silence(alert) }, "Silence\u2026"),
  ]
}

function runbook({ runbook_url }) {
  return runbook_url && h("a", { href: runbook_url, target: "_blank", rel: "noreferrer", "data-key": "runbook" }, "Runbook")
}

function permalink({ fingerprint, rule, job_id }, isChosen, choose) {
  const show = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return
    event.preventDefault()
    choose(isChosen ? null : fingerprint)
  }
  return h("a", { href: alertHref(fingerprint), "data-key": "details", "aria-expanded": String(isChosen), "aria-label": `Details of ${contained(rule)} on ${contained(job_id)}`, onclick: show }, isChosen ? "Hide" : "Details")
}

/** Where the proof is: the window that counted last, unless the job goes on and shows it by itself. */
const jobHref = ({ job_id }) => `/jobs/${encodeURIComponent(job_id)}`
