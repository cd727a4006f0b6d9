/** A button that opens a list of links or buttons below itself: closed by a choice, by Esc, by a click elsewhere. */

import { h } from "../lib/dom.js"

/** The menu; `attributes` are those of its `details`, `summary` is its button and `list` what it opens. */
export function menu(attributes, summary, list) {
  list.onclick = (event) => event.target.closest("a, button") && closeMenus()
  const { class: kind = "", ...others } = attributes
  return h("details", { ...others, class: `menu ${kind}`.trim(), onkeydown: closeByEsc }, summary, list)
}

function closeByEsc(event) {
  if (event.key !== "Escape" || !event.currentTarget.open) return
  event.preventDefault()
  closeMenus()
}

function closeMenus() {
  for (const opened of document.querySelectorAll(".menu[open]")) {
    if (opened.contains(document.activeElement)) opened.querySelector("summary").focus()
    opened.open = false
  }
}

document.addEventListener("click", (event) => {
  for (const opened of document.querySelectorAll(".menu[open]")) if (!opened.contains(event.target)) opened.open = false
})
