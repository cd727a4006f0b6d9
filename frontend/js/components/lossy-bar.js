/** The bar on every page that says what a crash could lose here. */

import { h } from "../dom.js"
import { mark } from "./mark.js"

/** The bar, or nothing where nothing can be lost. */
export function lossyBar(sentences) {
  if (!sentences.length) return null
  return h(
    "div",
    { class: "note-bar", role: "note" },
    mark("warning"),
    h("div", {}, h("b", {}, "A crash may lose data here."), sentences.map((sentence) => h("p", {}, capital(sentence)))),
  )
}

function capital(sentence) {
  return `${sentence.charAt(0).toUpperCase()}${sentence.slice(1)}.`
}
