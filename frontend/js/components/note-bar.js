/** A bar under the headline: a bold fact, its consequence, one thing to do. */

import { h } from "../dom.js"
import { mark } from "./mark.js"

/** The bar; `act` is `{text, onclick}` or nothing. */
export function noteBar({ fact, consequence, act }) {
  return h(
    "div",
    { class: "note-bar", role: "note" },
    mark("warning"),
    h("span", {}, h("b", {}, fact), ` ${consequence}`),
    act && h("button", { class: "text-button act", type: "button", onclick: act.onclick }, act.text),
  )
}
