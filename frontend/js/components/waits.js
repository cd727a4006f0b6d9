/** Arrivals: which rank the others waited for, and remarks on it. docs/arrivals.md has the figures. */

import { contained, isKnown, roundedPercent } from "../lib/formatting.js"
import { place } from "./culprits.js"

// As in app/charts/job/waits.py.
const MATERIAL_SHARE = 0.05
const MIN_COVERAGE = 0.6

const percent = (share) => `${roundedPercent(share)} %`

/** Whether to show the chart of waits: a finding rests on them, or ranks wait long for one rank. */
export function showsWaits(result) {
  if (!result?.arrivals) return false
  const carried = (result.findings ?? []).some(({ evidence }) => evidence?.arrivals)
  return carried || (result.arrivals.largest_share ?? 0) > MATERIAL_SHARE
}

/** Remarks on waits that no finding explains; with any, "nothing stands out" would be wrong. */
export function waitRemarks({ arrivals, coverage, unexplained, unexplained_share, findings }) {
  const isLow = Number.isFinite(coverage) && coverage < MIN_COVERAGE
  const late = lateRank(arrivals)
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
  ].filter(Boolean)
}

/**
 * The rank that the others waited for most because of its own delay, with its worker, host and `share` of the step;
 * null where the longest wait is little.
 */
function lateRank(arrivals) {
  if (!arrivals?.rank?.length || !(arrivals.largest_share > MATERIAL_SHARE)) return null
  const waited_s = arrivals.waited_for_s.map((value_s) => value_s ?? 0)
  const own_s = waited_s.map((value_s, at) => ownPart(value_s, arrivals.own_delay_s[at], arrivals))
  const most_s = Math.max(...own_s) > 0 ? own_s : waited_s
  const at = most_s.indexOf(Math.max(...most_s))
  const named = ["rank", "dp_rank", "stage", "host", "local_rank"].map((name) => [name, arrivals[name][at]])
  const share = (waited_s[at] / Math.max(...waited_s)) * arrivals.largest_share
  return { ...Object.fromEntries(named), share }
}

/** As in app/charts/job/waits.py: below half of it the delay is inherited; of no suspect it is unknown. */
function ownPart(waited_s, own_delay_s, arrivals) {
  if (!arrivals.own_delay_s.some(isKnown)) return waited_s
  const own_s = Math.min(waited_s, Math.max(0, own_delay_s ?? 0))
  return own_s < waited_s / 2 ? 0 : own_s
}

/** Whether a finding's culprit is that rank, its worker, dp rank or stage, or its host. */
function names(culprit, late) {
  if (culprit.rank === late.rank) return true
  if (isKnown(culprit.local_rank)) return false
  const axes = ["dp_rank", "stage"].filter((axis) => isKnown(culprit[axis]))
  if (axes.length) return axes.every((axis) => culprit[axis] === late[axis])
  return isKnown(late.host) && culprit.host === late.host
}
