/** The slowdown scale: fixed from 1.0 to 1.5, the same in every ribbon, ramp and heatmap. */

import { h } from "../../lib/dom.js"
import { seconds, tidy } from "../../lib/formatting.js"

const STOPS = [1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5]
const NUM_COLOURS = 7

/** A CSS colour for a slowdown; follows the theme by itself. */
export function colourAt(slowdown) {
  const value = Math.min(Math.max(slowdown, STOPS[0]), STOPS.at(-1))
  const upper = Math.max(
    1,
    STOPS.findIndex((stop) => value <= stop),
  )
  const share = (value - STOPS[upper - 1]) / (STOPS[upper] - STOPS[upper - 1])
  return `color-mix(in srgb, var(--scale-${upper}) ${(100 * share).toFixed(1)}%, var(--scale-${upper - 1}))`
}

/** The key of a heatmap. */
export function slowdownScale() {
  const cells = STOPS.slice(1).map((_, index) => h("i", { style: `background: var(--scale-${index + 1})` }))
  return h(
    "span",
    { class: "ramp" },
    "1.0\u00d7",
    h("span", { class: "cells" }, cells),
    "1.5\u00d7 and over",
    h(
      "svg",
      { class: "cross", viewBox: "0 0 10 10", "aria-hidden": "true" },
      h("path", { d: "M3 3l4 4M7 3l-4 4", stroke: "currentColor" }),
    ),
    "not measured",
  )
}

/** The key of the heatmap of waits: from nothing to half a step and over. */
export function waitScale(figure) {
  const most_ms = figure?.data[0].zmax
  const cells = Array.from({ length: NUM_COLOURS }, (_, index) =>
    h("i", { style: `background: var(--scale-${index + 1})` }),
  )
  return h(
    "span",
    { class: "ramp" },
    "0",
    h("span", { class: "cells" }, cells),
    tidy(most_ms ? `${seconds(most_ms / 1000)} (50 % of a step) and over` : "50 % of a step and over"),
  )
}
