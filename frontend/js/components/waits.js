/** Arrivals: whom the others waited for, and what is to be said of that. docs/arrivals.md has the figures. */

import { h } from "../dom.js"
import { percentNumber, seconds, tidy } from "../words.js"

// As in app/charts/arrivals.py.
const MATERIAL_SHARE = 0.05
const MIN_COVERAGE = 0.6
const NUM_COLOURS = 7

const percent = (share) => `${percentNumber(share, share >= 0.0995 ? 0 : 1)} %`

/** Whether waits are worth a picture: they carry a finding, or ranks wait much for one rank. */
export function showsWaits(result) {
  if (!result?.arrivals) return false
  const carried = (result.findings ?? []).some(({ evidence }) => evidence?.arrivals)
  return carried || (result.arrivals.largest_share ?? 0) > MATERIAL_SHARE
}

/** Sentences about what no finding says; where there is one, "nothing stands out" would be wrong. */
export function waitRemarks({ arrivals, coverage, unexplained_share, findings }) {
  const isLow = Number.isFinite(coverage) && coverage < MIN_COVERAGE
  const largest = arrivals?.largest_share ?? 0
  return [
    isLow && `Recorded operations cover only ${percent(coverage)} of the step: too little for a verdict.`,
    !findings?.length && largest > MATERIAL_SHARE && `The other ranks wait for one rank for ${percent(largest)} of the step.`,
    unexplained_share > MATERIAL_SHARE && `${percent(unexplained_share)} of the step is waiting that no cause explains.`,
  ].filter(Boolean)
}

/** The key of the heatmap: from nothing to half a step and over. */
export function waitRamp(figure) {
  const most_ms = figure?.data[0].zmax
  const cells = Array.from({ length: NUM_COLOURS }, (_, index) => h("i", { style: `background: var(--scale-${index + 1})` }))
  return h("span", { class: "ramp" }, "0", h("span", { class: "cells" }, cells), tidy(most_ms ? `${seconds(most_ms / 1000)} (50 % of a step) and over` : "50 % of a step and over"))
}
