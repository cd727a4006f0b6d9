/** Arrivals: which rank the others waited for, and remarks on it. docs/arrivals.md has the figures. */

import { contained, isKnown, percentNumber, roundedPercent } from "../lib/formatting.js"
import { place } from "./culprits.js"

// As in app/charts/job/waits.py.
const MATERIAL_SHARE = 0.05
const MIN_COVERAGE = 0.6
// As in app/result/words.py.
const MIN_FACT_SHARE = 0.03
// A wait of which less is the rank's own delay is inherited.
const MIN_OWN_SHARE = 0.5

/** Why figures are withheld as of low fidelity; as `low_fidelity_words` of app/result/words.py. */
export function lowFidelityWords({ fidelity, wait_coverage }) {
  if (wait_coverage === 0)
    return "No collective of several dp ranks is recorded: whether they wait for a slow one cannot be told."
  const off = percentNumber(fidelity.discrepancy)
  return `The simulated step differs from the recorded one by ${off} %, over the limit of 5 %.`
}

const percent = (share) => `${roundedPercent(share)} %`

/** Whether to show the chart of waits: a finding rests on them, or ranks wait long for one rank. */
export function showsWaits(result) {
  if (!result?.arrivals) return false
  const carried = (result.findings ?? []).some(({ evidence }) => evidence?.arrivals)
  return carried || (result.arrivals.largest_share ?? 0) > MATERIAL_SHARE
}

/** Facts that blame nobody, as sentences; with a least share those that take as much of the GPU time. */
export const observed = ({ observations }, leastShare = null) =>
  (observations ?? [])
    .filter(({ share }) => leastShare === null || share >= leastShare)
    .map(({ sentence }) => `${contained(sentence)}.`)

/** Remarks on what no finding explains; with any, "nothing stands out" would be wrong. */
export function waitRemarks(result) {
  const { arrivals, coverage, unexplained, unexplained_share, findings } = result
  const isLow = Number.isFinite(coverage) && coverage < MIN_COVERAGE
  const late = lateRank(arrivals, findings)
  const isNamed =
    late && (findings ?? []).some(({ culprits }) => (culprits ?? []).some((culprit) => names(culprit, late)))
  return [
    isLow && `Recorded operations cover only ${percent(coverage)} of the step: too little for a finding.`,
    late &&
      !isNamed &&
      (!findings?.length || unexplained_share > MATERIAL_SHARE) &&
      `The other ranks waited for ${place(late)} for ${percent(late.share)} of the step.`,
    unexplained_share > MATERIAL_SHARE &&
      `${percent(unexplained_share)} of the step is waiting that no cause explains.`,
    // Waiting is a part of the loss: both would be said of the same time.
    !(unexplained_share > MATERIAL_SHARE) && unexplained?.sentence && `${contained(unexplained.sentence)}.`,
    ...observed(result, MIN_FACT_SHARE),
  ].filter(Boolean)
}

/**
 * The rank that the others waited for most because of its own delay, with its worker, host and `share` of the step;
 * null where the longest wait is little. As `rank_waits` of app/charts/job/waits.py orders them.
 */
function lateRank(arrivals, findings) {
  if (!arrivals?.rank?.length || !(arrivals.largest_share > MATERIAL_SHARE)) return null
  const isBlamed = blamed(arrivals, findings)
  const knowsOwn = arrivals.own_delay_s.some(isKnown)
  const ranks = arrivals.rank.map((_, at) => {
    const names = ["rank", "dp_rank", "stage", "host", "local_rank"].map((name) => [name, arrivals[name][at]])
    const rank = { ...Object.fromEntries(names), waited_s: arrivals.waited_for_s[at] ?? 0 }
    const own = arrivals.own_delay_s[at]
    const share = isKnown(own) && rank.waited_s > 0 ? Math.min(1, Math.max(0, own) / rank.waited_s) : 1
    const isHeldUp = knowsOwn && !isBlamed(rank) && rank.waited_s > 0 && (!isKnown(own) || share < MIN_OWN_SHARE)
    return { ...rank, own_s: isHeldUp ? 0 : share * rank.waited_s }
  })
  const longest_s = Math.max(...ranks.map(({ waited_s }) => waited_s))
  const [late] = ranks.sort((one, other) => other.own_s - one.own_s || other.waited_s - one.waited_s)
  return { ...late, share: (late.waited_s / longest_s) * arrivals.largest_share }
}

/** A function that says whether arrivals, or a finding, blame a rank. */
function blamed({ culprits }, findings) {
  const named = (findings ?? []).flatMap((finding) => finding.culprits ?? [])
  const ranks = new Set([...(culprits ?? []), ...named].map(({ rank }) => rank).filter(isKnown))
  const workers = new Set(
    named
      .filter(({ local_rank }) => !isKnown(local_rank))
      .map(workerOf)
      .filter(isKnown),
  )
  return (rank) => ranks.has(rank.rank) || workers.has(workerOf(rank))
}

const workerOf = ({ dp_rank, stage }) => (isKnown(dp_rank) && isKnown(stage) ? `${dp_rank}-${stage}` : null)

/** Whether a finding's culprit is that rank, its worker, dp rank or stage, or its host. */
function names(culprit, late) {
  if (culprit.rank === late.rank) return true
  if (isKnown(culprit.local_rank)) return false
  const axes = ["dp_rank", "stage"].filter((axis) => isKnown(culprit[axis]))
  if (axes.length) return axes.every((axis) => culprit[axis] === late[axis])
  return isKnown(late.host) && culprit.host === late.host
}
