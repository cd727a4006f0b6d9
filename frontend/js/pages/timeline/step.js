/** Which step a timeline shows, and the fields to choose its dp rank and step. */

import { getJson } from "../../lib/api.js"
import { h } from "../../lib/dom.js"
import { whole } from "../../lib/formatting.js"

/**
 * The step `{shown, note}` of a job; `shown` is the API's answer.
 *
 * An address may name a step alone, or a stretch of windows: then the step's own window is looked
 * for. Operations are kept when a window closes, so of an open one the last closed one is shown.
 */
export async function findStep(base, { window, step, dp }) {
  const wanted = isOne(window) ? window : ((await windowOf(base, window, step)) ?? lastOf(window))
  try {
    return { shown: await get(base, wanted, { step, dp }), note: null }
  } catch (error) {
    // A step that is named with its window and is not there is told: nothing else was meant.
    if (error.status !== 409 || wanted === "latest") throw error
    const shown = await get(base, "latest", { dp })
    return { shown, note: { fact: `This is step ${shown.step}.`, consequence: error.message } }
  }
}

const isOne = (window) => /^\d+-\d+$/.test(window ?? "")

/** The last window of a stretch. */
const lastOf = (window) => (window?.includes("..") ? window.split("..")[1] : "latest")

async function windowOf(base, window, step) {
  if (step === null) return null
  const query = new URLSearchParams({ first: step, last: step, limit: "1" })
  const epoch = /^(\d+)-/.exec(window ?? "")?.[1]
  if (epoch) query.set("epoch", epoch)
  const { items } = await getJson(`${base}/steps?${query}`)
  return items[0]?.window ?? null
}

function get(base, window, { step = null, dp = null }) {
  const known = Object.entries({ step, dp }).filter(([, value]) => value !== null)
  return getJson(`${base}/windows/${encodeURIComponent(window)}/step?${new URLSearchParams(known)}`)
}

// More than that is quicker typed than looked for.
const MAX_LISTED = 64

/** The controls beside the headline; `onDp`, `onStep` and `onOpen` get what the reader wants. */
export function stepPicker({ shown, windows, fileHref, isOpening, onDp, onStep, onOpen }) {
  return h(
    "div",
    { class: "acts", "data-key": "acts" },
    shown.dp_size > 1 && dpField(shown, onDp),
    stepField(shown, windows, onStep),
    h("a", { class: "button", href: fileHref, download: true }, "Download"),
    h(
      "button",
      { class: "button is-primary", type: "button", onclick: onOpen, disabled: isOpening },
      elsewhere(),
      isOpening ? "Opening" : "Open in Perfetto",
    ),
  )
}

function elsewhere() {
  const d = "M6.5 3H3v10h10V9.5M9 2.5h4.5V7M13.5 2.5 7.5 8.5"
  return h(
    "svg",
    { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" },
    h("path", { d, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }),
  )
}

function dpField({ dp_rank, dp_size, dp_ranks_on_path }, onDp) {
  const onchange = (event) => onDp(Number(event.target.value))
  if (dp_size > MAX_LISTED) {
    return h(
      "label",
      { class: "labelled" },
      "dp",
      h("input", {
        class: "field",
        type: "number",
        min: 0,
        max: dp_size - 1,
        value: dp_rank,
        "aria-label": "dp rank",
        onchange,
      }),
    )
  }
  const onPath = [...dp_ranks_on_path].sort((a, b) => a - b)
  const others = Array.from({ length: dp_size }, (_, rank) => rank).filter((rank) => !onPath.includes(rank))
  const option = (rank) => h("option", { value: rank, selected: rank === dp_rank }, `dp ${rank}`)
  const group = (label, ranks) => ranks.length > 0 && h("optgroup", { label }, ranks.map(option))
  return h(
    "select",
    { class: "field", "aria-label": "dp rank", onchange },
    group("On the critical path", onPath),
    group("Not on it", others),
  )
}

/** The steps of this window, and of the closed windows beside it. */
function stepField({ window, step, steps }, windows, onStep) {
  const others = windows.filter((other) => other.window_id !== window)
  const options = [
    ...steps.map((each) => ({ window, step: each, text: `Step ${whole(each)}` })),
    ...others.map((other) => ({
      window: other.window_id,
      step: null,
      text: `Slowest of ${whole(other.first_step)} to ${whole(other.last_step)}`,
    })),
  ]
  const isShown = (option) => option.window === window && option.step === step
  const onchange = (event) => onStep(options[event.target.selectedIndex])
  const group = (label, wanted) =>
    wanted.length > 0 &&
    h(
      "optgroup",
      { label },
      wanted.map((option) => h("option", { selected: isShown(option) }, option.text)),
    )
  return h(
    "select",
    { class: "field", "aria-label": "Step", onchange },
    group("This window", options.slice(0, steps.length)),
    group("Other windows", options.slice(steps.length)),
  )
}
