/** The sentence that opens a page. */

import { h } from "../dom.js"
import { tidy } from "../words.js"
import { stateMark } from "./mark.js"

/** State mark (if any), sentence and line under it. */
export function headline({ state = null, sentence, sub = "" }) {
  return h(
    "section",
    { class: "headline" },
    state && stateMark(state),
    h("h1", {}, tidy(sentence)),
    sub && h("p", {}, tidy(sub)),
  )
}
