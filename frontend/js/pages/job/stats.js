/** The figures of the shown windows of a job. */

import { leadingFinding } from "../../components/findings-card.js"
import { hasStaleFigures } from "../../components/missing-data.js"
import { statStrip } from "../../components/stat-strip.js"
import {
  ago,
  counted,
  isKnown,
  mean,
  percentNumber,
  ratio,
  roughHours,
  roundedPercent,
  seconds,
  stepRange,
  whole,
} from "../../lib/formatting.js"

const FIDELITY_LIMIT = 0.05
const WITHHELD = "withheld: low fidelity"
// Of a job that is hardly slower than its ideal, shares of the loss say nothing.
const WORTH_IT = 1.02

/**
 * The strip; `result` is the windows' object, or null before there is one.
 *
 * `isSinceOnset` tells that the loss is all that the leading cause has cost; `money(gpuHours)`
 * gives "" where no price is set.
 */
export function jobStats(job, result, { isSinceOnset = false, isNow = true, money = () => "" } = {}) {
  const known = result ?? {}
  if (!isKnown(known.slowdown) && known.fidelity?.verdict !== "low") return statStrip(unmeasured(job, known))
  const isOld = isNow && hasStaleFigures(job)
  const isWithheld = known.fidelity?.verdict === "low"
  const middle = isOld
    ? [lostNow(job), workersSending(job)]
    : [lost(known, isWithheld, isSinceOnset, money), ...wonBack(job, known, isWithheld)]
  const stats = [
    slowdown(known, isWithheld),
    wasted(job, known, isWithheld, money),
    ...middle,
    fidelity(known),
    clocks(known),
  ]
  const note = isOld && job.last_data_at ? ago(new Date(job.last_data_at)) : null
  return statStrip(stats.map((stat) => (note && stat.isOfThen ? { ...stat, note, isOld } : stat)))
}

/** What is known of a job without figures: one of the cells says why it has none. */
function unmeasured(job, { skipped_steps = [], window }) {
  const workers = job.parallelism.dp_size * job.parallelism.pp_size
  const [first, last] = [skipped_steps[0]?.step, skipped_steps.at(-1)?.step]
  const numSilent = window?.missing?.length || job.num_silent_ranks
  return [
    { label: "Slowdown", note: skipped_steps.length ? "no step could be replayed" : "no complete step yet" },
    {
      label: "Skipped",
      figure: skipped_steps.length ? whole(skipped_steps.length) : null,
      unit: skipped_steps.length === 1 ? "step" : "steps",
      note: skipped_steps.length ? stepRange(first, last) : "no step has ended yet",
    },
    {
      label: "Silent ranks",
      figure: numSilent ? whole(numSilent) : null,
      note: numSilent ? `of a job of ${counted(workers, "worker")}` : "no rank is given up yet",
    },
    {
      label: "Last step",
      figure: job.last_step === null ? null : whole(job.last_step),
      note: job.last_data_at ? `last data ${ago(new Date(job.last_data_at))}` : "no data so far",
    },
  ]
}

const share = (value) => (isKnown(value) ? roundedPercent(value) : null)

const joined = (...parts) => parts.filter(Boolean).join(", ")

const numLeftOut = (result) => result.window?.num_left_out ?? 0

const numWindows = (result) => (result.window?.windows?.length ?? 1) + numLeftOut(result)

/** Of a range that is too large to be read whole. */
const partRead = (result) =>
  numLeftOut(result) > 0 && `${whole(result.window.windows.length)} of ${counted(numWindows(result), "window")} read`

function slowdown(known, isWithheld) {
  const { slowdown: figure, step_time_s } = known
  const label = "Slowdown"
  if (isWithheld) return { label, note: `${WITHHELD}; recorded ${seconds(mean(step_time_s.recorded))} per step` }
  if (!figure) return { label, note: "no complete step yet" }
  const note = joined(
    `recorded ${seconds(mean(step_time_s.recorded))} per step, ${seconds(mean(step_time_s.ideal))} without stragglers`,
    partRead(known),
  )
  return { label, figure: ratio(figure), note, isOfThen: true }
}

function wasted(job, { gpu_time_wasted }, isWithheld, money) {
  const label = "GPU time wasted"
  if (isWithheld) return { label, note: WITHHELD }
  if (gpu_time_wasted === null || gpu_time_wasted === undefined) return { label, note: "needs a slowdown" }
  const perDay = 24 * job.gpus * gpu_time_wasted
  const note = joined(`about ${roughHours(perDay)} GPU-h a day`, money(perDay) && `about ${money(perDay)}`)
  return { label, figure: percentNumber(gpu_time_wasted), unit: "%", note, isOfThen: true }
}

/** What was lost is of all windows, read or not: the server adds it up. */
function lost(known, isWithheld, isSinceOnset, money) {
  const { gpu_hours_lost, steps } = known
  const label = isSinceOnset ? "Lost since onset" : "Lost in these steps"
  if (isWithheld) return { label, note: WITHHELD }
  if (gpu_hours_lost === null || gpu_hours_lost === undefined)
    return { label, note: partRead(known) || "needs a slowdown" }
  const over = numLeftOut(known) ? `all ${counted(numWindows(known), "window")}` : counted(steps.length, "step")
  return {
    label,
    figure: roughHours(gpu_hours_lost),
    unit: "GPU-h",
    note: joined(over, money(gpu_hours_lost) && `about ${money(gpu_hours_lost)}`),
  }
}

/** Of a stalled job all GPUs are lost; of one with silent ranks the loss is not known. */
function lostNow(job) {
  const label = "Lost now"
  if (job.state === "unknown") return { label, note: "not known: Paceline is behind" }
  if (job.state !== "stalled") return { label, note: "no complete steps to measure" }
  return { label, figure: whole(job.gpus), unit: "GPU-h per hour", note: "all GPUs of the job wait" }
}

function workersSending({ parallelism, state, num_silent_workers }) {
  const label = "Workers sending"
  const all = parallelism.dp_size * parallelism.pp_size
  if (state === "unknown") return { label, note: "not known: Paceline is behind" }
  const number = state === "stalled" ? 0 : all - num_silent_workers
  return {
    label,
    figure: whole(number),
    unit: `of ${whole(all)}`,
    note: number ? "the others are silent" : "no worker sends",
  }
}

/** The one figure that the leading cause is judged by. */
function wonBack(job, known, isWithheld) {
  const leading = leadingFinding(known.findings)
  if (leading?.cause === "sequence-imbalance") return [byLengths(leading)]
  return [leading?.cause === "stage-imbalance" ? byStage(job, known, isWithheld) : byWorker(job, known, isWithheld)]
}

function byLengths({ evidence }) {
  const label = "Explained by lengths"
  const r = Math.max(evidence.pearson_r ?? 0, evidence.pearson_r_of_replicas ?? 0)
  const note = r > 0 ? `forward goes with backward, r\u00a0${r.toFixed(2)}` : ""
  return {
    label,
    figure: share(atMostAll(evidence.share_of_loss)),
    ...whyAtMostAll(evidence.share_of_loss),
    unit: "% of the loss",
    note: share(evidence.share_of_loss) === null ? "no loss to explain" : note,
  }
}

/** No more is won back than is lost; the glossary says why a figure can be larger. */
const atMostAll = (value) => (isKnown(value) ? Math.min(1, value) : value)
const whyAtMostAll = (value) => (value > 1 ? { why: "won back" } : {})

const nothingToWin = (figure) => (figure ? "no loss to win back" : "needs a slowdown")

const notWorthIt = (label) => ({ label, figure: "n/a", note: "nothing worth winning back" })

function byWorker(job, { m_w, m_s, slowdown: figure }, isWithheld) {
  const label = "Won back by worker"
  if (isWithheld) return { label, note: WITHHELD }
  if (figure && figure < WORTH_IT) return notWorthIt(label)
  if (share(m_w) === null) return { label, note: nothingToWin(figure) }
  const hasStages = job.parallelism.pp_size > 1 && share(m_s) !== null
  return {
    label,
    figure: share(atMostAll(m_w)),
    ...whyAtMostAll(m_w),
    unit: "%",
    note: ["by fixing the slowest 3 % of workers", hasStages && `last stage alone ${share(m_s)} %`]
      .filter(Boolean)
      .join("; "),
  }
}

function byStage({ parallelism }, { stage_share, findings, m_w, slowdown: figure }, isWithheld) {
  const stage = leadingFinding(findings).evidence.stages?.[0] ?? parallelism.pp_size - 1
  const label = stage === parallelism.pp_size - 1 ? "Won back by last stage" : `Won back by stage ${stage}`
  const value = stage_share?.[stage]
  if (isWithheld) return { label, note: WITHHELD }
  if (figure && figure < WORTH_IT) return notWorthIt(label)
  if (share(value) === null) return { label, note: nothingToWin(figure) }
  const workers = share(m_w) === null ? "" : `the slowest 3 % of workers ${share(atMostAll(m_w))} %`
  const note = value > 1 ? "all of the loss" : workers
  return { label, figure: share(atMostAll(value)), ...whyAtMostAll(value), unit: "%", note }
}

function fidelity(result) {
  const { fidelity: known } = result
  const label = "Fidelity"
  const off = known?.discrepancy
  if (off === null || off === undefined) return { label, note: "no complete step yet" }
  const isLow = known.verdict === "low"
  const limit = result.wait_coverage === 0 ? "waits not recorded" : `limit ${percentNumber(FIDELITY_LIMIT)} %`
  const low =
    known.low_windows > 0 && `${whole(known.low_windows)} of ${counted(result.window.windows.length, "window")} low`
  return {
    label,
    figure: off < 0.0005 ? "<0.1" : percentNumber(off),
    unit: "% off",
    note: joined(isLow ? "low" : "good", limit, low),
    noteMark: isLow ? "low-fidelity" : "healthy",
    isOfThen: false,
  }
}

/** How far apart the hosts' clocks are left after they were brought together. */
function clocks({ clocks: known }) {
  const label = "Clock residual"
  if (!known) return { label, note: "no complete step yet" }
  if (known.residual_ms === null) return { label, note: known.reason ?? "hosts unknown" }
  const figure = known.residual_ms < 0.001 ? "<0.001" : Number(known.residual_ms.toPrecision(2)).toString()
  return {
    label,
    figure,
    unit: "ms",
    note: known.reason ?? "hosts' clocks agree",
    noteMark: known.reason ? "warning" : "healthy",
  }
}
