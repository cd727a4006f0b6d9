/** Figures of two windows: B's, and what they were on A. */

import { NOT_MEASURED, percentNumber, ratio, seconds, whole } from "../words.js"
import { statStrip } from "./stat-strip.js"

const MINUS = "\u2212"

/** The strip; `a` and `b` are the API's sides. */
export function compareStats({ a, b, change_s }) {
  return statStrip([slowdown(a, b), stepTime(a, b, change_s), wasted(a, b), lost(a, b), fidelity(a, b)])
}

const isUsable = ({ slowdown, verdict }) => slowdown !== null && verdict !== "low"
const why = ({ not_measured, verdict }) => not_measured ?? (verdict === "low" ? "withheld: low fidelity" : "")
const signed = (value, write) => `${value < 0 ? MINUS : "+"}${write(Math.abs(value))}`

/** A figure of B with its unit, and in the note what A has. */
function cell(label, a, b, read, { write, unit = "", difference = null }) {
  const figure = isUsable(b) ? write(read(b)) : null
  if (figure === null) return { label, note: `B: ${why(b)}` }
  if (!isUsable(a)) return { label, figure, unit, note: `A: ${NOT_MEASURED}, ${why(a)}` }
  const shown = unit ? `${write(read(a))} ${unit}` : write(read(a))
  const text = difference === null ? signed(read(b) - read(a), write) : difference
  return { label, figure, unit, note: `A ${shown}, ${text}` }
}

function slowdown(a, b) {
  return cell("Slowdown", a, b, (side) => side.slowdown, { write: ratio, difference: signed(b.slowdown - a.slowdown, (value) => value.toFixed(2)) })
}

/** Recorded times are there whatever the simulation is worth. */
function stepTime(a, b, change) {
  const label = "Step time"
  if (b.recorded_s === null) return { label, note: `B: ${why(b)}` }
  const [figure, unit] = seconds(b.recorded_s).split(" ")
  if (a.recorded_s === null) return { label, figure, unit, note: `A: ${NOT_MEASURED}, ${why(a)}` }
  const than = change === null ? "not the same work" : `${signed(change, (value) => percentNumber(value))} %`
  return { label, figure, unit, note: `A ${seconds(a.recorded_s)}, ${than}` }
}

function wasted(a, b) {
  return cell("GPU time wasted", a, b, (side) => side.gpu_time_wasted, { write: (value) => percentNumber(value), unit: "%", difference: `${signed(b.gpu_time_wasted - a.gpu_time_wasted, (value) => percentNumber(value))} points` })
}

function lost(a, b) {
  return cell("Lost", a, b, (side) => side.lost_gpu_hours_per_day, { write: (value) => (Math.abs(value) < 10 ? value.toFixed(1) : whole(value)), unit: "GPU-h per day" })
}

function fidelity(a, b) {
  const off = ({ discrepancy }) => (discrepancy === null ? NOT_MEASURED : discrepancy < 0.0005 ? "<0.1" : percentNumber(discrepancy))
  if (b.discrepancy === null) return { label: "Fidelity", note: `B: ${why(b)}` }
  const isLow = b.verdict === "low"
  return { label: "Fidelity", figure: off(b), unit: "% off", note: `${isLow ? "low" : "good"}, limit 5 %; A ${off(a)}${a.discrepancy === null ? "" : " %"}`, noteMark: isLow ? "low-fidelity" : "healthy" }
}
