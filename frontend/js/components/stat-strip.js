/** A strip of figures with labels and notes. */

import { h } from "../lib/dom.js"
import { NOT_MEASURED, tidy } from "../lib/formatting.js"
import { labelled } from "./definition.js"
import { stateIcon } from "./state-icon.js"

/** Cells of `{label, figure, unit, note, noteMark, isOld}`; a null figure is "not measured". */
export function statStrip(stats) {
  return h("dl", { class: `stat-strip of-${stats.length}`, style: `--cells: ${stats.length}` }, stats.map(cell))
}

function cell({ label, figure, unit, note, noteMark, isOld }) {
  return h(
    "div",
    { class: "stat" },
    h("dt", {}, labelled(label)),
    figureOf(figure, unit, isOld),
    noteOf(note, noteMark),
  )
}

function figureOf(figure, unit, isOld) {
  if (figure === null || figure === undefined) return h("dd", { class: "figure is-unknown" }, NOT_MEASURED)
  return h(
    "dd",
    { class: isOld ? "figure is-old" : "figure" },
    figure,
    unit && h("span", { class: "unit" }, ` ${unit}`),
  )
}

function noteOf(note, noteMark) {
  return note ? h("dd", { class: "note" }, noteMark && stateIcon(noteMark), h("span", {}, tidy(note))) : null
}
