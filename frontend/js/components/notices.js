/** Bars and cards that say what is wrong with the page itself: old figures, failed requests, possible loss of data. */

import { h } from "../lib/dom.js"
import { about, capitalized, clock, tidy } from "../lib/formatting.js"
import { stateIcon } from "./state-icon.js"

/** The bar; `act` is `{text, onclick}` or nothing. */
export function noteBar({ fact, consequence, act }) {
  return h(
    "div",
    { class: "note-bar", role: "note" },
    stateIcon("warning"),
    h("span", {}, h("b", {}, fact), ` ${consequence}`),
    act && h("button", { class: "text-button act", type: "button", onclick: act.onclick }, act.text),
  )
}

/** The bar of a page whose newest request failed with `error`: it shows older answers. */
export function staleNote(error, retry) {
  const bar = noteBar({
    fact: `Shown as of ${clock(error.at)}.`,
    consequence: error.status
      ? `The server has refused since: ${error.message}`
      : "The server has not answered this page since.",
    act: { text: "Try again", onclick: retry },
  })
  // Hidden where the bar of every page says that nothing answers.
  bar.classList.add("of-page")
  return bar
}

/** The bar of every page while the server cannot be reached since `lostAt`. */
export function connectionBar(lostAt, hasFigures) {
  return noteBar({
    fact: `No connection to Paceline since ${clock(lostAt)}.`,
    consequence: hasFigures
      ? "Figures are of then; the page tries again by itself."
      : "The page tries again by itself.",
  })
}

/** The bar of every page while Paceline has not processed what workers have sent: `lag` is that of the events. */
export function behindBar({ as_of, behind_s }) {
  return noteBar({
    fact: `Paceline is ${about(behind_s)} behind; states as of ${clock(new Date(as_of))}.`,
    consequence: "What jobs do now is not known. Nothing is lost: later data waits, and alerts wait with it.",
  })
}

/** A card that says what failed, when and why; its button calls `retry`. */
export function panelFailed(what, error, retry) {
  const why = error.status ? `The server answered ${error.status}: ${error.message}` : "The server did not answer."
  return h(
    "div",
    { class: "card panel-state", role: "alert" },
    stateIcon("warning"),
    h("b", {}, what),
    h("p", {}, tidy(`${why} At ${clock(error.at ?? new Date())}.`)),
    h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}

/** The bar for operators, or null while the disk has room. */
export function diskBar(sentence) {
  if (!sentence) return null
  return noteBar({ fact: `${capitalized(sentence)}.`, consequence: "Free space on it, or lower keep_raw_days." })
}

/** The bar, or null where a crash loses no data. */
export function lossyBar(sentences) {
  if (!sentences.length) return null
  return h(
    "div",
    { class: "note-bar", role: "note" },
    stateIcon("warning"),
    h(
      "div",
      {},
      h("b", {}, "A crash may lose data here."),
      sentences.map((sentence) => h("p", {}, `${capitalized(sentence)}.`)),
    ),
  )
}
