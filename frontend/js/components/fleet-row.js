/** One job as a line of the fleet: a link, and a box to pick it for a comparison. */

import { h } from "../dom.js"
import { NOT_MEASURED, ago, contained, ratio, shape, whole } from "../words.js"
import { causes, culprit, leadingCause } from "./fleet-causes.js"
import { gpuHours } from "./fleet-figures.js"
import { stateMark } from "./mark.js"
import { hasOldFigures } from "./silence.js"
import { sparkline } from "./sparkline.js"

const NOT_ANY = "n/a"

/** The line; `pick` is null or `{isPicked, onpick}` while jobs are picked. */
export function fleetRow(job, pick, money) {
  return h(
    "div",
    { class: pick ? "fleet-line is-picking" : "fleet-line", "data-key": job.job_id, role: "listitem" },
    h(
      "a",
      { class: "row", href: `/jobs/${encodeURIComponent(job.job_id)}`, onclick: (event) => choose(event, job, pick) },
      h("span", { class: "is" }, stateMark(job.state), h("span", { class: "at-phone" }, leadingCause(job))),
      h("span", { class: "job" }, h("b", {}, contained(job.name)), h("small", {}, under(job))),
      h("span", { class: "number slowdown" }, slowdown(job)),
      course(job),
      causes(job),
      culprit(job),
      since(job),
      h("span", { class: "number at-wide at-desk" }, whole(job.gpus)),
      lost(job, money),
    ),
    pick && box(job, pick),
  )
}

/** While jobs are picked a click picks; else it opens, and "back" leads to this line again. */
function choose(event, { job_id }, pick) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return
  if (!pick) return history.replaceState({ opened: job_id }, "")
  event.preventDefault()
  pick.onpick()
}

/** The words under a job's name: its shape and who runs it. */
function under({ parallelism, labels, framework }) {
  const who = labels.owner ?? labels.team ?? framework
  return [shape(parallelism), who && contained(who)].filter(Boolean).join(" \u00b7 ")
}

const isWithheld = (job) => job.verdict === "low"

function slowdown(job) {
  if (job.slowdown === null || hasOldFigures(job)) return quiet(NOT_MEASURED)
  return h("b", { class: job.state === "finished" && "old" }, ratio(job.slowdown))
}

function course(job) {
  if (isWithheld(job)) return h("span", { class: "quiet at-desk at-middle" }, NOT_MEASURED)
  return sparkline(job.sparkline, { onset: job.onset_bin, isSilent: hasOldFigures(job) })
}

function since(job) {
  const step = job.since_step === null ? null : `step ${whole(job.since_step)}`
  const when = job.since_at ? ago(new Date(job.since_at)) : sinceWhen(job)
  return h("span", { class: when === NOT_ANY ? "quiet at-desk at-narrow" : "since at-desk at-narrow" }, when, step && h("small", {}, step))
}

/** A cause without a beginning is as old as what is known of the run. */
const sinceWhen = ({ causes }) => (causes.length ? "whole run" : NOT_ANY)

function lost(job, money) {
  const perDay = job.lost_gpu_hours_per_day
  if (perDay === null) return h("span", { class: "number lost is-unknown" }, quiet(job.state === "finished" ? NOT_ANY : NOT_MEASURED))
  const price = money(perDay)
  return h("span", { class: "number lost" }, h("b", {}, gpuHours(perDay)), price && h("small", {}, price))
}

const quiet = (text) => h("span", { class: "quiet" }, text)

function box(job, { isPicked, onpick }) {
  return h(
    "button",
    { class: "pick", type: "button", role: "checkbox", "aria-checked": String(isPicked), "aria-label": `Compare ${contained(job.name)}`, onclick: onpick },
    h("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, h("path", { d: "M1.5 6.5 4.5 9.5 10.5 2.5", fill: "none", stroke: "currentColor", "stroke-width": 1.75 })),
  )
}
