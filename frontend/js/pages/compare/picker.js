/** The fields for both sides: a job and some of its windows. */

import { h } from "../../lib/dom.js"
import { contained, NOT_MEASURED, ratio, stepRange, whole } from "../../lib/formatting.js"

// At most so many runs and windows are listed; the address may name any other.
const MAX_WINDOWS = 60

/**
 * The card.
 *
 * `sides` are two of `{job, window, windows}`, `windows` the job's, newest first; `jobs` are those
 * that the reader may mean by what is typed. `onJob(letter, id)`, `onWindow(letter, id)`,
 * `onType(text)`, `onSwap()`.
 */
export function comparePicker({ sides, jobs, onJob, onWindow, onType, onSwap }) {
  const row = (side, at) => sideRow({ ...side, letter: "ab"[at], onJob, onWindow, onType })
  return h(
    "section",
    { class: "card compare-picker", "data-key": "picker", "aria-label": "What is compared" },
    sides.map(row),
    h("button", { class: "button", type: "button", "data-key": "swap", onclick: onSwap }, "Swap A and B"),
    h(
      "datalist",
      { id: "compare-jobs", "data-key": "jobs" },
      jobs.map(({ job_id, name }) => h("option", { value: job_id }, contained(name))),
    ),
  )
}

/** Set the fields to what is compared, except for the one with the focus. */
export function fillIn(card) {
  for (const field of card.querySelectorAll("input, select")) {
    if (field !== document.activeElement && field.value !== field.dataset.value) field.value = field.dataset.value
  }
}

function sideRow({ letter, job, window, windows, isKnown, onJob, onWindow, onType }) {
  const upper = letter.toUpperCase()
  const typed = (event) => onType(event.target.value)
  const picked = (event) => onJob(letter, event.target.value.trim())
  return h(
    "div",
    { class: "side", "data-key": letter },
    h("b", { class: `letter is-${letter}` }, upper),
    h("span", { class: "quiet role" }, letter === "a" ? "before" : "now"),
    h("input", {
      class: "field job",
      list: "compare-jobs",
      placeholder: "A job",
      "data-value": job,
      "aria-label": `Job of ${upper}`,
      "aria-invalid": isKnown === false && "true",
      autocomplete: "off",
      spellcheck: "false",
      oninput: typed,
      onchange: picked,
    }),
    h(
      "select",
      {
        class: "field",
        "data-value": window,
        "aria-label": `Window of ${upper}`,
        disabled: !job,
        onchange: (event) => onWindow(letter, event.target.value),
      },
      options(window, windows),
    ),
  )
}

function options(picked, windows) {
  const shown = windows.slice(0, MAX_WINDOWS)
  const several = runs(windows)
  const known = picked === "recent" || [...shown, ...several].some(({ window_id }) => window_id === picked)
  const option = (value, text) => h("option", { value, selected: value === picked }, text)
  return [
    option("recent", "Newest figures"),
    !known && option(picked, `window ${picked}`),
    several.length > 0 &&
      h(
        "optgroup",
        { label: "Runs" },
        several.map(({ window_id, text }) => option(window_id, text)),
      ),
    shown.length > 0 &&
      h(
        "optgroup",
        { label: "Windows" },
        shown.map((window) => option(window.window_id, words(window))),
      ),
  ]
}

/** Whole runs, as far as their windows are known, as the first and the last window of each. */
function runs(windows) {
  const epochs = [...new Set(windows.map(({ epoch }) => epoch))]
  return epochs
    .map((epoch) => windows.filter((window) => window.epoch === epoch))
    .filter((own) => own.length > 1)
    .map((own) => {
      const [newest, oldest] = [own[0], own.at(-1)]
      return {
        window_id: `${oldest.window_id}..${newest.window_id}`,
        text: `Run ${whole(newest.epoch)}, ${stepRange(oldest.first_step, newest.last_step)}`,
      }
    })
}

function words({ epoch, first_step, last_step, slowdown }) {
  const figure = slowdown === null ? NOT_MEASURED : ratio(slowdown)
  return `Run ${whole(epoch)}, ${stepRange(first_step, last_step)}, ${figure}`
}
