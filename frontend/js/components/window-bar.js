/** Which window the page shows: the latest, or one picked from the past. */

import { h } from "../dom.js"
import { NOT_MEASURED, about, ratio, stepRange, whole } from "../words.js"
import { colourAt } from "./scale.js"

const NUM_CELLS = 48

/** The bar; `windows` are summaries, newest first; `picked` is "latest" or a window's id. */
export function windowBar({ windows, picked, shown, onPick, windowSteps, step_s }) {
  const ribbon = windows.slice(0, NUM_CELLS).reverse()
  return h(
    "section",
    { class: "card window-bar", "aria-label": "Window", "data-key": "window-bar" },
    h(
      "div",
      { class: "segments" },
      h("button", { type: "button", "aria-pressed": String(picked === "latest"), onclick: () => onPick("latest") }, "Follow latest"),
    ),
    h(
      "select",
      { class: "field", "aria-label": "Pick a window", onchange: (event) => onPick(event.target.value) },
      option("latest", "latest window", picked),
      windows.filter(isClosed).map((window) => option(window.window_id, describe(window), picked)),
    ),
    h("div", { class: "ribbon" }, ribbon.map((window) => cell(window, picked, shown, onPick))),
    h("div", { class: "what" }, whatShows(shown, windowSteps, step_s)),
  )
}

function option(value, text, picked) {
  return h("option", { value, selected: value === picked }, text)
}

function cell(window, picked, shown, onPick) {
  const known = window.slowdown !== null
  const isShown = window.window_id === shown?.window_id
  return h("button", {
    type: "button",
    tabindex: "-1",
    "aria-hidden": "true",
    title: describe(window),
    class: known ? null : "is-unknown",
    style: known ? `--cell: ${colourAt(window.slowdown)}` : null,
    "aria-pressed": String(isShown),
    onclick: () => onPick(isClosed(window) ? window.window_id : "latest"),
  })
}

const isClosed = (window) => window.state !== "open"

function describe(window) {
  const slowdown = window.slowdown === null ? NOT_MEASURED : ratio(window.slowdown)
  return `${stepRange(window.first_step, window.last_step)}, ${slowdown}`
}

function whatShows(window, windowSteps, step_s) {
  if (!window) return "no window yet"
  const steps = stepRange(window.first_step, window.last_step)
  if (isClosed(window)) return [steps, h("br"), `${whole(window.num_steps)} recorded, ${window.state}`]
  const numLeft = windowSteps - window.num_steps
  const more = step_s && numLeft > 0 ? `, about ${about(numLeft * step_s)} more` : ""
  return [steps, h("br"), `${whole(window.num_steps)} of ${whole(windowSteps)} complete${more}`]
}
