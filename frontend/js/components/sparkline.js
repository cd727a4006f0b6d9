/** The last windows' slowdown as a small line, filled above 1.0. */

import { h } from "../dom.js"
import { ratio } from "../words.js"

const WIDTH = 184
const HEIGHT = 32
const TOP = 1.55
const NUM_WINDOWS = 48
const SILENCE = 24

/** A sparkline over window summaries, newest first; `isSilent` draws what is missing as dashes. */
export function sparkline(windows, isSilent) {
  const slowdowns = windows.slice(0, NUM_WINDOWS).reverse().map((window) => window.slowdown)
  const known = slowdowns.filter((slowdown) => slowdown !== null)
  const text = known.length ? `last ${known.length} windows, ${ratio(Math.min(...known))} to ${ratio(Math.max(...known))}` : "no window yet"
  return h(
    "svg",
    { class: "sparkline at-desk at-middle", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": text },
    h("line", { class: "ground", x1: 0, x2: WIDTH, y1: y(1), y2: y(1) }),
    stretches(slowdowns, isSilent ? WIDTH - SILENCE : WIDTH).map((stretch) => [
      h("path", { class: "area", d: areaPath(stretch) }),
      h("path", { class: "line", d: linePath(stretch) }),
    ]),
    isSilent && h("line", { class: "silence", x1: WIDTH - SILENCE + 4, x2: WIDTH, y1: y(1) - 2, y2: y(1) - 2 }),
    known.at(-1) > TOP && h("text", { x: WIDTH - 4, y: HEIGHT / 2 + 4, "text-anchor": "end" }, "off scale \u2303"),
  )
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
