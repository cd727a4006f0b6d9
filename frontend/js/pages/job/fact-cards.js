/** Cards of facts beside the charts: fingerprint, data used, what a job without figures waits for, events. */

import { h } from "../../lib/dom.js"
import {
  ago,
  capitalized,
  contained,
  counted,
  NOT_MEASURED,
  optypeName,
  percentNumber,
  ratio,
  stepRange,
  tidy,
  whole,
} from "../../lib/formatting.js"
import { timed, timeOf } from "../../lib/times.js"

const VARIANCE = {
  between_stages: "between stages",
  between_workers: "between workers of a stage",
  within_workers: "within a worker",
}
const MAX_TYPES = 6

/** The card; null where nothing was measured. */
export function fingerprintCard({ fingerprint, fidelity }) {
  if (!fingerprint) return null
  const variance = fingerprint.variance ?? {}
  const types = Object.entries(fingerprint.optype_share ?? {})
    .sort((a, b) => b[1] - a[1])
    .map(([name, share]) => [optypeName(name), share])
  return h(
    "section",
    { class: "card fingerprint", "data-key": "fingerprint", "aria-label": "Fingerprint" },
    h("header", {}, h("h2", {}, "Fingerprint"), h("span", { class: "explanation" }, "to check the findings against")),
    shareList(
      "Forward compute varies",
      Object.entries(VARIANCE).map(([name, words]) => [words, variance[name]]),
    ),
    fidelity?.verdict === "low"
      ? withheld("Loss by operation")
      : shareList("Loss by operation", types.slice(0, MAX_TYPES)),
  )
}

function withheld(title) {
  return [h("h3", {}, title), h("p", { class: "quiet" }, "withheld: low fidelity")]
}

function shareList(title, rows) {
  const known = rows.filter(([, share]) => Number.isFinite(share))
  return [
    h("h3", {}, title),
    known.length ? h("dl", {}, known.map(shareRow)) : h("p", { class: "quiet" }, "not measured"),
  ]
}

function shareRow([name, share]) {
  const width = Math.min(100, Math.max(0, 100 * share))
  return [
    h("dt", {}, name),
    h(
      "dd",
      { class: "number" },
      h("i", {}, h("i", { style: `width: ${width.toFixed(1)}%` })),
      tidy(`${percentNumber(share, 0)} %`),
    ),
  ]
}

const MAX_LISTED = 8

/** The card; `result` is the windows' object, `ribbon` the job's; `silent` says who is silent now. */
export function dataUsedCard(result, ribbon, silent = null) {
  const { window, steps, skipped_steps, launch_slowdown } = result
  const rows = [
    window.windows
      ? ["Windows", `${counted(window.windows.length, "window")}, ${window.windows[0]} to ${window.windows.at(-1)}`]
      : ["Window", `${window.id}, revision ${window.revision}`],
    ["State", window.state],
    [
      "Steps",
      steps.length
        ? `${whole(steps[0])}${steps.length > 1 ? ` to ${whole(steps.at(-1))}` : ""}, ${whole(steps.length)} recorded`
        : "none yet",
    ],
    ["Skipped", skipped(skipped_steps)],
    window.num_left_out > 0 && ["Windows omitted", `${whole(window.num_left_out)}, to limit the size of the answer`],
    result.more_findings > 0 && ["Causes omitted", `${whole(result.more_findings)}, each costs less than those shown`],
    ["Ranks missing", missing(window.missing ?? [], silent)],
    result.imputed && ["Imputed", imputed(result.imputed)],
    ["Recorded against simulated step", launch_slowdown ? ratio(launch_slowdown) : NOT_MEASURED],
    ribbon.older > 0 && ["Older windows", `${whole(ribbon.older)}, not on the ribbon`],
  ]
  return h(
    "section",
    { class: "card", "data-key": "measured", "aria-label": "Data used" },
    h("header", {}, h("h2", {}, "Data used")),
    h(
      "dl",
      { class: "facts" },
      rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
  )
}

/** Of the window, and of now. */
function missing(ranks, silent) {
  if (!silent) return some(ranks.map(String))
  return ranks.length ? `${some(ranks.map(String))} in this window; now ${silent}` : `${silent}, after this window`
}

/** Operations that were not recorded: their peers' medians stand in for them. */
function imputed({ ops, workers }) {
  const from = workers.length ? `; missing: ${some(workers.map(missingWorker))}` : ""
  return `${counted(ops, "operation")}, by the medians of their peers${from}`
}

function missingWorker({ rank, dp_rank, stage, first_step, last_step }) {
  return `rank ${rank} (dp ${dp_rank}, stage ${stage}) in ${stepRange(first_step, last_step)}`
}

/** Steps that were never analysed, and why: successive ones with the same reason as one. */
function skipped(steps) {
  const stretches = []
  for (const { step, reason } of steps) {
    const before = stretches.at(-1)
    if (before && before.reason === reason && before.last === step - 1) before.last = step
    else stretches.push({ first: step, last: step, reason })
  }
  return some(
    stretches.map(({ first, last, reason }) => `${stepRange(first, last)}: ${contained(reason)}`),
    "; ",
  )
}

function some(texts, between = ", ") {
  if (!texts.length) return "none"
  const more = texts.length - MAX_LISTED
  return texts.slice(0, MAX_LISTED).join(between) + (more > 0 ? ` and ${whole(more)} more` : "")
}

/** The card; in place of the findings. */
export function waitingForCard(job) {
  const rows = [
    ["Complete steps", `none of ${whole(job.window_steps)}`],
    ["Last step started", job.last_step === null ? "none" : whole(job.last_step)],
    ["Last data", job.last_data_at ? ago(new Date(job.last_data_at)) : "none so far"],
  ]
  return h(
    "section",
    { class: "card", "data-key": "missing", "aria-label": "Missing data" },
    h("header", {}, h("h2", {}, "Missing data")),
    h(
      "dl",
      { class: "facts" },
      rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
    h("p", { class: "remark" }, why(job)),
  )
}

function why({ state, last_data_at }) {
  if (state === "finished")
    return "The run ended without a complete step: figures need a step that most workers of each stage have reported."
  if (state === "crashed" || state === "preempted")
    return "The run ended before a complete step: figures need a step that most workers of each stage have reported."
  if (!last_data_at)
    return "The job is registered; no worker has sent data yet. Figures come with the first complete step."
  return "Figures come with the first step that its workers have reported."
}

const MAX_ROWS = 8

// The log of alerts says more than the ribbon does.
const OF_ALERTS = ["alert-firing", "alert-resolved"]

/** The card from the ribbon's events and the rows of the job's `AlertLog`; null where nothing happened. */
export function eventsCard(events, alertRows) {
  const all = [...events.filter(({ kind }) => !OF_ALERTS.includes(kind)), ...alertRows]
  if (!all.length) return null
  const newest = placedInOrder(all).reverse()
  return h(
    "section",
    { class: "card happened", "data-key": "happened", "aria-label": "What happened" },
    h("header", {}, h("h2", {}, "What happened")),
    h("dl", {}, newest.slice(0, MAX_ROWS).map(eventRow)),
    newest.length > MAX_ROWS && h("p", { class: "remark" }, `and ${whole(newest.length - MAX_ROWS)} earlier`),
  )
}

/** By run and step, oldest first; what has no step, such as a stalled job, by its time. */
function placedInOrder(events) {
  const placed = events.filter(({ step }) => step !== null).sort((a, b) => a.epoch - b.epoch || a.step - b.step)
  for (const event of events.filter(({ step }) => step === null)) {
    const at = placed.findIndex((other) => other.at && new Date(other.at) > new Date(event.at))
    placed.splice(at < 0 ? placed.length : at, 0, event)
  }
  return placed
}

function eventRow({ step, at, detail, words, href }) {
  const when = [at && timeOf(new Date(at)), at && step !== null && ", ", step !== null && `step ${whole(step)}`]
  const said = words ? h("dd", {}, h("a", { href }, words)) : h("dd", {}, timed(tidy(capital(detail))))
  return [h("dt", { class: "number" }, when), said]
}

const capital = (text) => (/^(dp |host)/.test(text) ? text : capitalized(text))
