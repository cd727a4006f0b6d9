/** The form that picks the windows of a range of clock times: presets before the newest step, or from and to. */

import { h } from "../../lib/dom.js"
import { zoneName } from "../../lib/times.js"

const PRESETS = [
  ["last-15m", "15 min"],
  ["last-1h", "1 h"],
  ["last-6h", "6 h"],
  ["last-24h", "24 h"],
]

/** The form; `time` is `{from, to}` of the address, `known` the first and last time; `onPick` gets `{from, to}`. */
export function timeRangeForm({ time, known, onPick }) {
  return h(
    "form",
    {
      class: "time-range",
      "data-key": "time-range",
      "aria-label": "Range of times",
      onsubmit: (event) => submitted(event, onPick),
    },
    h("span", {}, "Last"),
    h(
      "div",
      { class: "segments", role: "group", "aria-label": "Last" },
      PRESETS.map(([from, text]) =>
        h(
          "button",
          {
            type: "button",
            title: `The last ${text} before the newest step`,
            "aria-pressed": String(time?.from === from && !time?.to),
            onclick: () => onPick({ from, to: null }),
          },
          text,
        ),
      ),
    ),
    field("From", "from", time?.from, known),
    field("To", "to", time?.to, known),
    h("span", { class: "zone" }, zoneName()),
    h("button", { class: "button", type: "submit" }, "Show"),
  )
}

function field(label, name, value, known) {
  const [min, max] = known.map((at) => (at ? localInput(new Date(at)) : null))
  const date = new Date(value ?? "")
  return h(
    "label",
    {},
    label,
    h("input", {
      class: "field",
      type: "datetime-local",
      name,
      step: "1",
      value: Number.isNaN(date.getTime()) ? (name === "from" ? min : max) : localInput(date),
    }),
  )
}

function submitted(event, onPick) {
  event.preventDefault()
  const given = (name) => {
    const date = new Date(event.target.elements[name].value)
    return Number.isNaN(date.getTime()) ? null : date.toISOString().replace(".000Z", "Z")
  }
  onPick({ from: given("from"), to: given("to") })
}

/** A date as an input of type datetime-local has it, to the second. */
const localInput = (date) => new Date(date.getTime() - 60000 * date.getTimezoneOffset()).toISOString().slice(0, 19)
