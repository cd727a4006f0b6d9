/** The form of a silence: which alerts, for how long, and why. */

import { h, onEscape, patch } from "../../lib/dom.js"
import { whole } from "../../lib/formatting.js"
import { segments } from "../buttons.js"
import { allMatch, MatcherFields, matchersWords } from "./matchers.js"

const HOUR_MS = 3_600_000
const LASTING = [
  ["1", "1 h"],
  ["4", "4 h"],
  ["24", "1 day"],
]
const NO_REASON = "no reason given"

/**
 * The form of a new silence. `onSubmit(silence)` with what POST /silences takes, `onClose()` when it is
 * cancelled, `alerts()` are the active alerts, to count those that match.
 */
export class SilenceForm {
  constructor({ onSubmit, onClose, alerts }) {
    Object.assign(this, { onSubmit, onClose, alerts, lasts: "1", refusal: "", isPlanned: false, job: null })
    this.matchers = new MatcherFields({
      legend: "Alerts whose",
      none: "Name at least one label.",
      onChange: () => this.draw(),
    })
    this.slot = h("div", { class: "form-body" })
    this.summary = h("summary", {})
    this.frame = h("details", { class: "matched" }, this.summary, this.matchers.node)
    this.node = h(
      "form",
      {
        class: "form silence-form",
        "data-own": true,
        "aria-label": "Silence",
        onsubmit: (event) => this.submit(event),
        onkeydown: onEscape(onClose),
      },
      this.frame,
      this.slot,
    )
  }

  /**
   * Start with these matchers; `isPlanned` for one that may begin later, such as maintenance.
   *
   * `job` is that of the alert to be silenced: the silence may last until it ends, and its matchers are folded.
   */
  open(matchers, { isPlanned = false, job = null } = {}) {
    Object.assign(this, { lasts: "1", refusal: "", isPlanned, job })
    this.node.reset()
    this.matchers.take(matchers)
    this.frame.open = job === null
    this.draw()
  }

  /** Put the focus where the reader goes on. */
  focus() {
    this.node.querySelector(this.job === null ? "input, button" : "[data-key=lasting] button").focus()
  }

  /** Show why it was refused. */
  refuse(text) {
    this.refusal = text
    this.draw()
  }

  draw() {
    this.summary.textContent = `Alerts whose ${matchersWords(this.matchers.matchers)}`
    patch(
      this.slot,
      this.isPlanned && h("div", { class: "fields", "data-key": "plan" }, kindField(), startField()),
      h(
        "div",
        { class: "lasting", "data-key": "lasting" },
        h("span", { class: "label" }, "For"),
        segments("For how long", this.choices(), this.lasts, (value) => this.last(value)),
        this.lasts === "until" && untilField(),
      ),
      h(
        "label",
        { class: "why", "data-key": "comment" },
        h("b", {}, "Why"),
        h("input", { class: "field", name: "comment", maxlength: 256, placeholder: NO_REASON, autocomplete: "off" }),
      ),
      h("p", { class: "quiet", "data-key": "meant" }, this.meant()),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refusal),
      h(
        "div",
        { class: "acts", "data-key": "acts" },
        h("button", { class: "button is-primary", type: "submit" }, "Silence"),
        h("button", { class: "button", type: "button", onclick: this.onClose }, "Cancel"),
      ),
    )
  }

  choices() {
    return [...LASTING, ...(this.job === null ? [] : [["end", "Until the job ends"]]), ["until", "Custom"]]
  }

  meant() {
    const { matchers } = this.matchers
    const meant = this.alerts().filter(({ labels }) => allMatch(matchers, labels)).length
    const matched =
      meant === 0 ? "no current alert" : meant === 1 ? "1 current alert" : `${whole(meant)} current alerts`
    return `Matches ${matched}. Silenced alerts notify nobody; they still show on this page.`
  }

  last(value) {
    this.lasts = value
    this.draw()
    if (value === "until") this.node.elements.until.focus()
  }

  submit(event) {
    event.preventDefault()
    const { comment, kind, starts, until } = this.node.elements
    const starts_at = starts?.value ? new Date(starts.value) : null
    this.onSubmit({
      kind: kind?.value ?? "silence",
      matchers: this.matchers.matchers,
      starts_at: starts_at?.toISOString() ?? null,
      ...this.end(starts_at ?? new Date(), until),
      comment: comment.value.trim() || NO_REASON,
    })
  }

  end(start, until) {
    if (this.lasts === "end") return { until_end_of: this.job }
    const ends_at =
      this.lasts === "until" ? new Date(until.value) : new Date(start.getTime() + Number(this.lasts) * HOUR_MS)
    return { ends_at: ends_at.toISOString() }
  }
}

function kindField() {
  return h(
    "label",
    {},
    h("b", {}, "Kind"),
    h(
      "select",
      { class: "field", name: "kind" },
      h("option", { value: "silence" }, "Silence"),
      h("option", { value: "maintenance" }, "Maintenance"),
    ),
  )
}

function startField() {
  return h(
    "label",
    {},
    h("b", {}, "Begins"),
    h("input", { class: "field", name: "starts", type: "datetime-local" }),
    h("small", {}, "Empty: at once."),
  )
}

function untilField() {
  return h("input", {
    class: "field",
    name: "until",
    type: "datetime-local",
    required: true,
    "aria-label": "Until",
    "data-key": "until",
  })
}
