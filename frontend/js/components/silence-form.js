/** The form for a silence: which alerts, for how long, and why. */

import { h, patch } from "../dom.js"
import { counted } from "../words.js"
import { MatcherFields } from "./matcher-fields.js"
import { allMatch } from "./matchers.js"
import { segments } from "./segments.js"

const HOUR_MS = 3_600_000
const LASTING = [["1", "1 h"], ["4", "4 h"], ["24", "1 day"], ["until", "Until"]]

/**
 * Keeps what is typed. `onSubmit(silence)` with what POST /silences takes, `onClose()` when it is
 * given up, `alerts()` the alerts that are not at rest, to say how many are meant.
 */
export class SilenceForm {
  constructor({ onSubmit, onClose, alerts }) {
    Object.assign(this, { onSubmit, onClose, alerts, lasts: "1", refusal: "", isPlanned: false })
    this.matchers = new MatcherFields({ legend: "Alerts whose", none: "Name at least one label.", onChange: () => this.draw() })
    this.slot = h("div", { class: "form-body" })
    this.node = h("form", { class: "form silence-form", "data-own": true, "aria-label": "Silence", onsubmit: (event) => this.submit(event) }, this.matchers.node, this.slot)
  }

  /** Begin with these matchers; `isPlanned` for one that may begin later, such as maintenance. */
  open(matchers, { isPlanned = false } = {}) {
    Object.assign(this, { lasts: "1", refusal: "", isPlanned })
    this.node.reset()
    this.matchers.take(matchers)
    this.draw()
  }

  /** Say why it was refused. */
  refuse(text) {
    this.refusal = text
    this.draw()
  }

  draw() {
    patch(
      this.slot,
      this.isPlanned && h("div", { class: "fields", "data-key": "plan" }, kindField(), startField()),
      h("div", { class: "lasting", "data-key": "lasting" }, h("span", { class: "label" }, "For"), segments("For how long", LASTING, this.lasts, (value) => this.last(value)), this.lasts === "until" && untilField()),
      h("label", { class: "why", "data-key": "comment" }, h("b", {}, "Why"), h("input", { class: "field", name: "comment", required: true, maxlength: 256, autocomplete: "off" })),
      h("p", { class: "quiet", "data-key": "meant" }, this.meant()),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refusal),
      h("div", { class: "acts", "data-key": "acts" }, h("button", { class: "button is-primary", type: "submit" }, "Silence"), h("button", { class: "button", type: "button", onclick: this.onClose }, "Cancel")),
    )
  }

  meant() {
    const { matchers } = this.matchers
    const meant = this.alerts().filter(({ labels }) => allMatch(matchers, labels)).length
    const fit = meant === 1 ? "1 alert of now fits." : `${meant ? counted(meant, "alert") : "No alert"} of now ${meant ? "fit." : "fits."}`
    return `${fit} Nobody is told of what fits; this page shows it all the same.`
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
    const ends_at = this.lasts === "until" ? new Date(until.value) : new Date((starts_at ?? new Date()).getTime() + Number(this.lasts) * HOUR_MS)
    this.onSubmit({ kind: kind?.value ?? "silence", matchers: this.matchers.matchers, starts_at: starts_at?.toISOString() ?? null, ends_at: ends_at.toISOString(), comment: comment.value.trim() })
  }
}

function kindField() {
  return h("label", {}, h("b", {}, "Kind"), h("select", { class: "field", name: "kind" }, h("option", { value: "silence" }, "Silence"), h("option", { value: "maintenance" }, "Maintenance")))
}

function startField() {
  return h("label", {}, h("b", {}, "Begins"), h("input", { class: "field", name: "starts", type: "datetime-local" }), h("small", {}, "Empty: at once."))
}

function untilField() {
  return h("input", { class: "field", name: "until", type: "datetime-local", required: true, "aria-label": "Until", "data-key": "until" })
}
