/** The figures of one worker in one window. */

import { ratio, seconds, whole } from "../words.js"
import { statStrip } from "./stat-strip.js"

/** The strip; `worker` is the API's answer. */
export function workerStats(worker) {
  return statStrip([slowdown(worker), place(worker), ofJob(worker), launch(worker), waited(worker), lost(worker)])
}

const unknown = ({ verdict }) => (verdict === "low" ? "withheld: low fidelity" : "no complete step yet")

function slowdown(worker) {
  const label = "If only this worker were slow"
  return worker.slowdown === null ? { label, note: unknown(worker) } : { label, figure: ratio(worker.slowdown), note: "slowdown of the job, exact" }
}

function place(worker) {
  const label = "Place by slowdown"
  const { num_workers } = worker
  if (worker.place === null) return { label, note: unknown(worker) }
  return { label, figure: whole(worker.place), unit: `of ${whole(num_workers)}`, note: worker.place === 1 ? "none costs more" : "1 is the slowest" }
}

function ofJob(worker) {
  const label = "Slowdown of the job"
  return worker.job_slowdown === null ? { label, note: unknown(worker) } : { label, figure: ratio(worker.job_slowdown), note: "as it runs" }
}

function launch({ launch_delay_s }) {
  return { label: "Launch delay", ...time(launch_delay_s), note: launch_delay_s === null ? "no complete step yet" : "a step, on this worker" }
}

function waited({ others_waited_s }) {
  return { label: "Others waited for that", ...time(others_waited_s), note: others_waited_s === null ? "no complete step yet" : "a step, all others together" }
}

function lost({ dropped }) {
  const label = "Dropped by its recorder"
  if (dropped === null) return { label, note: "its recorder does not say" }
  return { label, figure: whole(dropped), note: dropped ? "operations, never sent" : "all were sent" }
}

function time(value_s) {
  if (value_s === null) return {}
  const [figure, unit] = value_s < 1e-6 ? ["0", "ms"] : seconds(value_s).split(" ")
  return { figure, unit }
}
