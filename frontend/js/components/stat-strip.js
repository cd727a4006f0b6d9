/** A strip of figures with labels and notes. */

import { h } from "../lib/dom.js"
import { NOT_MEASURED, tidy } from "../lib/formatting.js"
import { labelled, term } from "./definition.js"
import { stateIcon } from "./state-icon.js"

/**
 * Cells of `{label, figure, unit, note, noteMark, why, isOld}`; a null figure is "not measured".
 *
 * `why` is a key of the glossary, shown behind "why?" after the note.
 */
export function statStrip(stats) {
  return h("dl", { class: `stat-strip of-${stats.length}`, style: `--cells: ${stats.length}` }, stats.map(cell))
}

function cell({ label, figure, unit, note, noteMark, why, isOld }) {
  return h(
    "div",
    { class: "stat" },
    h("dt", {}, labelled(label)),
    figureOf(figure, unit, isOld),
    noteOf(note, noteMark, why),
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

function noteOf(note, noteMark, why) {
  if (!note && !why) return null
  return h(
    "dd",
    { class: "note" },
    noteMark && stateIcon(noteMark),
    h("span", {}, tidy(note), why && [note && ", ", term("why?", why)]),
  )
}
