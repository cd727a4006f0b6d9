/** A switch of a few words, one of which is chosen. */

import { h } from "../dom.js"

/** `choices` are `[value, text]`; `onPick(value)` when another one is chosen. */
export function segments(label, choices, picked, onPick) {
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": label },
    choices.map(([value, text]) =>
      h("button", { type: "button", "data-key": value || "all", "aria-pressed": String(value === picked), onclick: () => value !== picked && onPick(value) }, text),
    ),
  )
}
