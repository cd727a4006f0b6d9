/** The last windows' slowdown as a small line, filled above 1.0. */

import { h } from "../../lib/dom.js"
import { NOT_MEASURED, ratio } from "../../lib/formatting.js"

const WIDTH = 184
const HEIGHT = 32
const TOP = 1.55
const NUM_WINDOWS = 48
const SILENCE = 24

/**
 * A sparkline over slowdowns, oldest first, null where one is unknown.
 *
 * `onset` is the index of the onset, or null; `isSilent` draws missing data as
 * dashes.
 */
export function sparkline(slowdowns, { onset = null, isSilent = false } = {}) {
  const shown = slowdowns.slice(-NUM_WINDOWS)
  const width = isSilent ? WIDTH - SILENCE : WIDTH
  const at = onset === null ? null : onset - (slowdowns.length - shown.length)
  return h(
    "svg",
    {
      class: "sparkline at-desk at-middle",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": inWords(shown, at),
    },
    h("line", { class: "ground", x1: 0, x2: WIDTH, y1: y(1), y2: y(1) }),
    stretches(shown, width).map((stretch) => [
      h("path", { class: "area", d: areaPath(stretch) }),
      h("path", { class: "line", d: linePath(stretch) }),
    ]),
    isSilent && h("line", { class: "silence", x1: width + 4, x2: WIDTH, y1: y(1) - 2, y2: y(1) - 2 }),
    at !== null && at >= 0 && flag(x(at, shown.length, width)),
    lastKnown(shown) > TOP && h("text", { x: width - 4, y: HEIGHT / 2 + 4, "text-anchor": "end" }, "off scale \u2303"),
  )
}

const lastKnown = (slowdowns) => slowdowns.findLast((slowdown) => slowdown !== null) ?? 0

function inWords(slowdowns, onset) {
  const known = slowdowns.filter((slowdown) => slowdown !== null)
  if (!known.length) return `slowdown over time ${NOT_MEASURED}`
  const range = `last ${known.length} windows, ${ratio(Math.min(...known))} to ${ratio(Math.max(...known))}`
  return onset !== null && onset >= 0 ? `${range}, began ${slowdowns.length - onset} windows ago` : range
}

/** The mark of the onset. */
function flag(at) {
  const held = Math.min(Math.max(at, 4), WIDTH - 4)
  return [
    h("line", { class: "onset", x1: held, x2: held, y1: 0, y2: y(1) }),
    h("path", { class: "onset-flag", d: `M${held - 3.5} 0h7l-3.5 5z` }),
  ]
}

// Fewer than 48 windows end at the right edge, where "now" is.
function x(index, length, width) {
  return width - ((length - 1 - index) * width) / (NUM_WINDOWS - 1)
}

function y(slowdown) {
  const held = Math.min(Math.max(slowdown, 1), TOP)
  return HEIGHT - 2 - ((held - 1) / (TOP - 1)) * (HEIGHT - 4)
}

/** Runs of known figures; an unknown one is a gap, not a line to zero. */
function stretches(slowdowns, width) {
  const runs = []
  slowdowns.forEach((slowdown, index) => {
    if (slowdown === null) return
    if (index === 0 || slowdowns[index - 1] === null) runs.push([])
    runs.at(-1).push([x(index, slowdowns.length, width), y(slowdown)])
  })
  return runs.map((run) => (run.length === 1 ? [[run[0][0] - 2, run[0][1]], run[0]] : run))
}

const linePath = (points) => `M${points.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L")}`

const areaPath = (points) => `${linePath(points)}V${y(1)}H${points[0][0].toFixed(1)}Z`
