/** Active alerts: what each says, who was notified, details, and what may be done about it. */

import { alertHref, figureOf, KINDS, stateOf, withoutName } from "../../components/alert-words.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import {
  ago,
  clock,
  confidenceFigure,
  contained,
  counted,
  percentNumber,
  ratio,
  roughHours,
  tidy,
  whole,
} from "../../lib/formatting.js"
import { sinceWhen, timed } from "../../lib/times.js"

/**
 * The rows.
 *
 * `known` has `silences` by id, `alerts` by fingerprint and `notified(alert)`; `chosen` is the
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
    h("span", { class: "state" }, stateIcon(markName), word),
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
    h("div", { class: "acts" }, act && actions(alert, act), runbook(alert), permalink(alert, isChosen, choose)),
    isChosen && details,
    under(alert),
  )
}

/** Who acknowledged it, who was notified, and which receivers were not. */
function notes(alert, known) {
  const { acknowledged_at, acknowledged_by, silenced_by, inhibited_by } = alert
  const notified = known.notified(alert)
  return [
    acknowledged_at &&
      note(
        "finished",
        `Acknowledged by ${contained(acknowledged_by ?? "unknown")}, ${ago(new Date(acknowledged_at))}; no repeats.`,
      ),
    silenced_by.length > 0 &&
      note("not-analysed", silencedWords(silenced_by.map((id) => known.silences.get(id)).filter(Boolean))),
    inhibited_by.length > 0 &&
      note("not-analysed", mutedWords(inhibited_by.map((each) => known.alerts.get(each)).filter(Boolean))),
    notified && note(notified.mark, notified.text),
  ]
}

const note = (markName, text) => h("span", { class: "note" }, stateIcon(markName), h("span", {}, text))

function silencedWords(silences) {
  if (!silences.length) return "Silenced."
  const last = silences.reduce((a, b) => (a.ends_at > b.ends_at ? a : b))
  const more = silences.length > 1 ? ` and ${counted(silences.length - 1, "more silence")}` : ""
  const until = clock(new Date(last.ends_at))
  return `Silenced by ${contained(last.author)} until ${until}: ${contained(last.comment)}${more}`
}

function mutedWords(inhibiting) {
  if (!inhibiting.length) return "Muted: covered by another alert."
  const [{ rule, subject }] = inhibiting
  return `Muted: covered by the ${contained(rule)} alert${subject && ` (${contained(subject)})`}.`
}

/** One data-key for acknowledging and undoing it, so that the button keeps the focus. */
function actions(alert, { acknowledge, takeBack, silence }) {
  const { acknowledged_at, phase, job_id, rule } = alert
  const which = `${contained(rule)} on ${contained(job_id)}`
  return [
    phase === "firing" &&
      (acknowledged_at
        ? h(
            "button",
            {
              class: "text-button",
              type: "button",
              "data-key": "acknowledge",
              "aria-label": `Remove the acknowledgement of ${which}`,
              onclick: () => takeBack(alert),
            },
            "Unacknowledge",
          )
        : h(
            "button",
            {
              class: "text-button",
              type: "button",
              "data-key": "acknowledge",
              "aria-label": `Acknowledge ${which}`,
              onclick: () => acknowledge(alert),
            },
            "Acknowledge",
          )),
    h(
      "button",
      {
        class: "text-button",
        type: "button",
        "data-key": "silence",
        "aria-label": `Silence ${which}`,
        onclick: () => silence(alert),
      },
      "Silence\u2026",
    ),
  ]
}

function runbook({ runbook_url }) {
  return (
    runbook_url && h("a", { href: runbook_url, target: "_blank", rel: "noreferrer", "data-key": "runbook" }, "Runbook")
  )
}

function permalink({ fingerprint, rule, job_id }, isChosen, choose) {
  const show = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return
    event.preventDefault()
    choose(isChosen ? null : fingerprint)
  }
  return h(
    "a",
    {
      href: alertHref(fingerprint),
      "data-key": "details",
      "aria-expanded": String(isChosen),
      "aria-label": `Details of ${contained(rule)} on ${contained(job_id)}`,
      onclick: show,
    },
    isChosen ? "Hide" : "Details",
  )
}

/** The page of the alert's job. */
const jobHref = ({ job_id }) => `/jobs/${encodeURIComponent(job_id)}`

/** Details under a row; `transitions` are those of this alert, newest first, null while they come. */
export function alertDetails(alert, transitions) {
  return h(
    "div",
    { class: "alert-details", "data-key": "details" },
    h(
      "dl",
      { class: "facts" },
      facts(alert).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
    h("div", {}, h("h3", {}, "Labels"), h("ul", { class: "labels" }, Object.entries(alert.labels).map(label))),
    h(
      "div",
      {},
      h("h3", {}, "History"),
      transitions ? transitionList(transitions) : h("p", { class: "quiet" }, "Loading\u2026"),
      messagesLink(alert.fingerprint),
    ),
  )
}

/** The card of an alert that a link names and that is not active. */
export function restingCard(fingerprint, transitions, onHide) {
  const [latest] = transitions
  const words = latest
    ? `${contained(latest.rule)} on ${contained(latest.job_id)} is not active`
    : "There is no such alert"
  return h(
    "section",
    { class: "card resting", "data-key": "resting", "aria-label": "The alert of this link" },
    h(
      "header",
      {},
      h("h2", {}, words),
      h("span", { class: "explanation" }, fingerprint),
      h("button", { class: "text-button", type: "button", onclick: onHide }, "Hide"),
    ),
    latest
      ? [transitionList(transitions), messagesLink(fingerprint)]
      : h(
          "p",
          { class: "quiet" },
          "Resolved alerts are deleted with the results of their job, by the retention of the project.",
        ),
  )
}

const messagesLink = (fingerprint) =>
  h("p", { "data-key": "messages" }, h("a", { href: `/alerts/receivers?alert=${fingerprint}` }, "Its notifications"))

/** Transitions of one alert, newest first. */
function transitionList(transitions) {
  if (!transitions.length) return h("p", { class: "quiet" }, "No history stored.")
  return h("ol", { class: "transitions" }, transitions.map(transition))
}

function transition({ event_id, kind, at, sentence, actor, reason }) {
  const [markName, word] = KINDS[kind] ?? ["not-analysed", kind]
  const by = [actor && `by ${contained(actor)}`, reason && contained(reason)].filter(Boolean).join(", ")
  return h(
    "li",
    { "data-key": String(event_id) },
    h("span", { class: "state" }, stateIcon(markName), word),
    h("span", {}, clock(new Date(at)), by && ` ${by}`, h("small", {}, timed(tidy(contained(sentence)), new Date(at)))),
  )
}

function facts({
  slowdown,
  gpu_time_wasted,
  gpu_hours_lost_per_hour,
  num_gpus,
  since_step,
  since_at,
  blame,
  names,
  num_named,
  began_at,
  fingerprint,
}) {
  return [
    slowdown !== null && ["Slowdown", ratio(slowdown)],
    gpu_time_wasted !== null && ["GPU time lost", tidy(`${percentNumber(gpu_time_wasted)} %`)],
    gpu_hours_lost_per_hour !== null && ["GPU-hours lost per hour", roughHours(gpu_hours_lost_per_hour)],
    num_gpus !== null && ["GPUs", whole(num_gpus)],
    since_step !== null && ["Since", sinceWhen({ step: since_step, at: since_at })],
    blame && ["Cause", tidy(contained(blame.sentence))],
    blame && ["Confidence", tidy(confidenceFigure(blame.confidence))],
    names.length > 0 && ["Silent", silent(names, num_named)],
    names.length === 0 &&
      num_named > 0 && ["Others over the limit", `${whole(num_named)}, without alerts of their own`],
    ["Condition since", clock(new Date(began_at))],
    ["Fingerprint", fingerprint],
  ].filter(Boolean)
}

function silent(names, number) {
  const more = number - names.length
  return names.map(contained).join("; ") + (more > 0 ? ` and ${whole(more)} more` : "")
}

const label = ([name, value]) => h("li", { "data-key": name }, h("b", {}, name), ` ${contained(value)}`)
