/** Active alerts by job: what each says, who was notified, details, and what may be done about it. */

import { alertNotes, mutedReasons } from "../../components/alerts/notes.js"
import {
  alertHref,
  bySeverity,
  figureOf,
  KINDS,
  ruleWords,
  stateOf,
  withoutName,
} from "../../components/alerts/words.js"
import { runbookOfAlert } from "../../components/runbook.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import {
  ago,
  clock,
  confidenceFigure,
  contained,
  percentNumber,
  ratio,
  roughHours,
  tidy,
  whole,
} from "../../lib/formatting.js"
import { sinceWhen, timed } from "../../lib/times.js"

/**
 * The groups, each of one job: `{jobId, open, muted}`.
 *
 * `page.known` has `silences` by id, `alerts` by fingerprint and `notified(alert)`; `chosen` is the
 * fingerprint in the address and `details` its details. `actions` is null where the reader may
 * change nothing.
 */
export function alertGroups(groups, page) {
  return groups.map((group) => jobGroup(group, page))
}

function jobGroup({ jobId, open, muted }, page) {
  return h(
    "section",
    { class: "job-group", "data-key": `job-${jobId}`, "aria-label": `Alerts of ${contained(jobId)}` },
    h(
      "h3",
      {},
      h("a", { class: "job", href: `/jobs/${encodeURIComponent(jobId)}` }, contained(jobId)),
      h("span", { class: "quiet" }, ` ${groupWords(open, muted)}`),
    ),
    open.length > 0 && rows(open, page),
    muted.length > 0 &&
      h(
        "details",
        { class: "muted", "data-key": "muted", open: muted.some(({ fingerprint }) => fingerprint === page.chosen) },
        h("summary", {}, `${whole(muted.length)} muted. ${mutedReasons(muted, page.known)}`),
        rows(muted, page),
      ),
  )
}

function groupWords(open, muted) {
  const firing = open.filter(({ phase }) => phase === "firing")
  const parts = [
    bySeverity(firing),
    firing.length < open.length && `${whole(open.length - firing.length)} pending`,
    muted.length > 0 && `${whole(muted.length)} muted`,
  ]
  return parts.filter(Boolean).join(", ")
}

function rows(alerts, page) {
  return h(
    "ol",
    { class: "now-rows" },
    alerts.map((alert) => row(alert, { ...page, isChosen: alert.fingerprint === page.chosen })),
  )
}

function row(alert, { known, isChosen, details, actions, choose }) {
  const { fingerprint, rule } = alert
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
      h("b", {}, ruleWords(alert)),
      h("span", { class: "quiet" }, ` rule ${contained(rule)}`),
      h("p", {}, withoutName(alert)),
      alert.sub && h("p", { class: "quiet" }, tidy(contained(alert.sub))),
      h("div", { class: "notes" }, alertNotes(alert, known, known.notified(alert))),
    ),
    h("span", { class: "number" }, figure && h("b", {}, figure), limit && h("small", {}, `limit ${limit}`)),
    h("span", { class: "at" }, ago(at), h("small", {}, clock(at))),
    h("div", { class: "acts" }, actions?.buttons(alert), runbook(alert), permalink(alert, isChosen, choose)),
    isChosen && details,
    actions?.under(alert),
  )
}

/** The runbook in a tab of its own, so that the alert stays in view. */
function runbook(alert) {
  const { rule, job_id } = alert
  return h(
    "a",
    {
      href: runbookOfAlert(alert),
      target: "_blank",
      rel: "noreferrer",
      "data-key": "runbook",
      "aria-label": `What to do about ${contained(rule)} on ${contained(job_id)}`,
    },
    "What to do",
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
  const by = transitionWords({ kind, actor, reason })
  return h(
    "li",
    { "data-key": String(event_id) },
    h("span", { class: "state" }, stateIcon(markName), word),
    h("span", {}, clock(new Date(at)), by && ` ${by}`, h("small", {}, timed(tidy(contained(sentence)), new Date(at)))),
  )
}

/** Who did it and what more is known: "to Maria, by ana", "by ana: the text of a note". */
export function transitionWords({ kind, actor, reason }) {
  const by = actor && `by ${contained(actor)}`
  if (kind === "note") return `${by}: ${contained(reason ?? "")}`
  const more = reason && (kind === "assigned" ? `to ${contained(reason)}` : contained(reason))
  return [kind === "assigned" ? [more, by] : [by, more]].flat().filter(Boolean).join(", ")
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
