/** The figures of one window of a job. */

import { percentNumber, ratio, seconds, whole } from "../words.js"
import { hasOldFigures } from "./silence.js"
import { statStrip } from "./stat-strip.js"

const FIDELITY_LIMIT = 0.05

/** The strip; `result` is the window's object, or null before there is one. */
export function jobStats(job, result) {
  const isOld = hasOldFigures(job)
  const known = result ?? {}
  const isWithheld = known.fidelity?.verdict === "low"
  const stats = [slowdown(known, isWithheld), wasted(job, known, isWithheld), byWorker(known, isWithheld), byStage(job, known, isWithheld), fidelity(known), launch(known)]
  return statStrip(stats.map((stat) => ({ ...stat, isOld })))
}

const mean = (numbers) => numbers.reduce((total, number) => total + number, 0) / numbers.length

const share = (value) => (value === null || value === undefined ? null : percentNumber(value, Math.abs(value) >= 0.0995 ? 0 : 1))

function slowdown({ slowdown, step_time_s }, isWithheld) {
  if (isWithheld) return { label: "Slowdown", note: `withheld: low fidelity; recorded ${seconds(mean(step_time_s.recorded))} per step` }
  if (!slowdown) return { label: "Slowdown", note: "no complete step yet" }
  const note = `recorded ${seconds(mean(step_time_s.recorded))} per step, ${seconds(mean(step_time_s.ideal))} without stragglers`
  return { label: "Slowdown", figure: ratio(slowdown), note }
}

function wasted(job, { gpu_time_wasted }, isWithheld) {
  const label = "GPU time wasted"
  if (isWithheld) return { label, note: "withheld: low fidelity" }
  if (gpu_time_wasted === null || gpu_time_wasted === undefined) return { label, note: "needs a slowdown" }
  const perDay = 24 * job.gpus * gpu_time_wasted
  const amount = perDay < 10 ? perDay.toFixed(1) : whole(perDay)
  return { label, figure: percentNumber(gpu_time_wasted), unit: "%", note: `${amount} GPU-h per day at ${whole(job.gpus)} GPUs` }
}

const nothingToWin = (slowdown) => (slowdown ? "no loss to win back" : "needs a slowdown")

function byWorker({ m_w, slowdown }, isWithheld) {
  const label = "Won back by worker"
  if (isWithheld) return { label, note: "withheld: low fidelity" }
  return { label, figure: share(m_w), unit: "%", note: share(m_w) === null ? nothingToWin(slowdown) : "by fixing the slowest 3 % of workers" }
}

function byStage(job, { m_s, slowdown }, isWithheld) {
  const label = "Won back by last stage"
  if (isWithheld) return { label, note: "withheld: low fidelity" }
  if (job.parallelism.pp_size === 1) return { label, note: "this job has one stage" }
  const why = m_s > 1 ? "over 100 %: see the stage panel" : m_s < -0.005 ? "below 0: see the stage panel" : `by fixing stage ${job.parallelism.pp_size - 1} alone`
  return { label, figure: share(m_s), unit: "%", note: share(m_s) === null ? nothingToWin(slowdown) : why }
}

function fidelity({ fidelity }) {
  const label = "Fidelity"
  const off = fidelity?.discrepancy
  if (off === null || off === undefined) return { label, note: "no complete step yet" }
  const isLow = fidelity.verdict === "low"
  const limit = `limit ${percentNumber(FIDELITY_LIMIT)} %`
  return { label, figure: off < 0.0005 ? "<0.1" : percentNumber(off), unit: "% off", note: `${isLow ? "low" : "good"}, ${limit}`, noteMark: isLow ? "low-fidelity" : "healthy" }
}

function launch({ launch_delay, launch_slowdown }) {
  const label = "Launch delay"
  const byWorker = launch_delay?.by_worker
  if (!byWorker?.length) return { label, note: "no complete step yet" }
  const [figure, unit] = seconds(mean(byWorker.flat())).split(" ")
  return { label, figure, unit, note: `a step, mean worker; recorded is ${ratio(launch_slowdown)} of simulated` }
}
