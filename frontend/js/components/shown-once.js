/** A secret just made: it is shown once, and can be copied. */

import { h } from "../dom.js"

/** The box; `words` say what it is, `onDone` puts it away. */
export function shownOnce({ words, text, onDone }) {
  const copy = (event) => {
    const button = event.currentTarget
    navigator.clipboard.writeText(text).then(
      () => (button.textContent = "Copied"),
      () => (button.textContent = "Could not copy"),
    )
  }
  return h(
    "div",
    { class: "shown-once", role: "status", "data-key": "shown-once" },
    h("b", {}, words),
    h("pre", { class: "code" }, h("code", {}, text)),
    h("div", { class: "acts" }, navigator.clipboard && h("button", { class: "button is-primary", type: "button", onclick: copy }, "Copy"), h("button", { class: "button", type: "button", onclick: onDone }, "Done")),
  )
}
