/** The sentence that opens a page. */

import { h } from "../dom.js"
import { tidy } from "../words.js"
import { mark, stateMark } from "./mark.js"

/** State mark (if any), sentence and line under it; `marked` is a mark and a word that is no job's state. */
export function headline({ state = null, marked = null, sentence, sub = "" }) {
  return h(
    "section",
    { class: "headline" },
    state && stateMark(state),
    marked && h("span", { class: "state" }, mark(marked[0]), marked[1]),
    h("h1", {}, tidy(sentence)),
    sub && h("p", {}, tidy(sub)),
  )
}
