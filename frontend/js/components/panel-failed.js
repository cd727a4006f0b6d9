/** What shows in place of a page or card that could not be loaded. */

import { h } from "../dom.js"
import { clock, tidy } from "../words.js"
import { mark } from "./mark.js"

/** The words: what failed, when and why; `retry` is called by the button. */
export function panelFailed(what, error, retry) {
  const why = error.status ? `The server answered ${error.status}: ${error.message}` : "The server did not answer."
  return h(
    "div",
    { class: "card panel-state", role: "alert" },
    mark("warning"),
    h("b", {}, what),
    h("p", {}, tidy(`${why} At ${clock(error.at ?? new Date())}.`)),
    h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}
