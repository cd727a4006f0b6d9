/** How a job's run is laid out along its ribbon, in shares of its width. */

import { whole } from "../words.js"

// A long gap must not squeeze what was recorded.
const MAX_GAP = 0.5
const NUM_LABELS = 7

// Steps that a bin has, or none of which is complete.
const sizeOf = ({ num_steps, first_step, last_step }) => num_steps || last_step - first_step + 1

/** The bins with `left` and `width`, and gaps alike; a bin is as wide as the steps that it has. */
export function laidOut({ bins, gaps }) {
  const total = bins.reduce((sum, bin) => sum + sizeOf(bin), 0)
  const gapAfter = new Map(gaps.map((gap) => [gap.after_bin, Math.min(gap.num_steps, MAX_GAP * total)]))
  const full = total + [...gapAfter.values()].reduce((sum, size) => sum + size, 0)
  let at = 0
  const placed = { bins: [], gaps: [] }
  bins.forEach((bin, index) => {
    const width = sizeOf(bin) / full
    placed.bins.push({ ...bin, left: at, width })
    at += width
    if (!gapAfter.has(index)) return
    placed.gaps.push({ ...gaps.find((gap) => gap.after_bin === index), left: at, width: gapAfter.get(index) / full })
    at += gapAfter.get(index) / full
  })
  return placed
}

/** Round steps with the place of each, and the first step of a run that begins anew. */
export function stepLabels(bins) {
  if (!bins.length) return []
  const numSteps = bins.reduce((sum, bin) => sum + sizeOf(bin), 0)
  const every = nice(numSteps / NUM_LABELS)
  const labels = [{ at: 0, text: `step ${whole(bins[0].first_step)}` }]
  for (const { first_step, last_step, left, width } of bins) {
    const round = Math.ceil(first_step / every) * every
    if (round > last_step) continue
    labels.push({ at: left + (width * (round - first_step)) / (last_step - first_step + 1), text: whole(round) })
  }
  return spread(labels, 0.11)
}

/** Labels without those that would touch the one before. */
export function spread(labels, room) {
  const kept = []
  for (const label of labels) {
    if (label.at <= 0.97 && (!kept.length || label.at - kept.at(-1).at >= room)) kept.push(label)
  }
  return kept
}

/** The bin under a share of the width: the nearest one, in a gap too. */
export function binAt(bins, share) {
  let best = 0
  bins.forEach(({ left, width }, index) => {
    if (Math.abs(left + width / 2 - share) < Math.abs(bins[best].left + bins[best].width / 2 - share)) best = index
    if (left <= share && share < left + width) best = index
  })
  return best
}

function nice(spacing) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (digit * power >= spacing) return digit * power
  }
}
