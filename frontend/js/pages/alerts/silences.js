/** Silences and maintenance: the list, and the form for a new one. */

import { segments } from "../../components/buttons.js"
import { allMatch, MatcherFields, matchersWords } from "../../components/label-matchers.js"
import { stateIcon } from "../../components/state-icon.js"
import { h, patch } from "../../lib/dom.js"
import { clock, contained, whole } from "../../lib/formatting.js"

/**
 * The card; `silences` is a page of active and planned ones.
 *
 * `act` is null where the reader may change nothing, else has `plan()` and `end(silence)`; `form` is
 * the form of a new one while it is open here, `refused` is `{id, text}` of one that could not be
 * ended, `onMore` shows more of them.
 */
export function silencesCard({ silences: { items, next_cursor }, act, form, refused, onMore }) {
  return h(
    "section",
    { class: "card silences", "data-key": "silences", "aria-label": "Silences" },
    h(
      "header",
      {},
      h("h2", {}, "Silences"),
      h("span", { class: "explanation" }, "these alerts notify nobody"),
      act &&
        !form &&
        h(
          "button",
          { class: "text-button toggle", type: "button", "data-key": "plan", onclick: act.plan },
          "New silence",
        ),
    ),
    form,
    items.length
      ? h(
          "ul",
          { class: "silence-rows" },
          items.map((silence) => row(silence, act, refused)),
        )
      : !form && h("p", { class: "quiet" }, "No silences, none planned."),
    next_cursor && h("button", { class: "button more", type: "button", onclick: onMore }, "Show more"),
  )
}

function row(silence, act, refused) {
  const { silence_id, kind, matchers, author, comment, state } = silence
  const words = matchersWords(matchers)
  return h(
    "li",
    { class: "row", "data-key": silence_id },
    h("span", { class: "state" }, stateIcon(state === "active" ? "not-analysed" : "silent"), stateWords(silence)),
    h("b", {}, words),
    h(
      "p",
      {},
      contained(comment),
      h("small", {}, `by ${contained(author)}${kind === "maintenance" ? ", maintenance" : ""}`),
    ),
    refused?.id === silence_id && h("p", { class: "refused", role: "alert", "data-key": "refused" }, refused.text),
    act &&
      h(
        "button",
        {
          class: "text-button",
          type: "button",
          "aria-label": `End the silence of ${words}`,
          onclick: () => act.end(silence),
        },
        state === "coming" ? "Cancel" : "End now",
      ),
  )
}

function stateWords({ state, starts_at, ends_at }) {
  const until = clock(new Date(ends_at))
  return state === "active" ? `Until ${until}` : `From ${clock(new Date(starts_at))} until ${until}`
}

const HOUR_MS = 3_600_000
const LASTING = [
  ["1", "1 h"],
  ["4", "4 h"],
  ["24", "1 day"],
  ["until", "Until"],
]

/**
 * The form. `onSubmit(silence)` with what POST /silences takes, `onClose()` when it is
 * cancelled, `alerts()` are the active alerts, to count those that match.
 */
export class SilenceForm {
  constructor({ onSubmit, onClose, alerts }) {
    Object.assign(this, { onSubmit, onClose, alerts, lasts: "1", refusal: "", isPlanned: false })
    this.matchers = new MatcherFields({
      legend: "Alerts whose",
      none: "Name at least one label.",
      onChange: () => this.draw(),
    })
    this.slot = h("div", { class: "form-body" })
    this.node = h(
      "form",
      {
        class: "form silence-form",
        "data-own": true,
        "aria-label": "Silence",
        onsubmit: (event) => this.submit(event),
      },
      this.matchers.node,
      this.slot,
    )
  }

  /** Start with these matchers; `isPlanned` for one that may begin later, such as maintenance. */
  open(matchers, { isPlanned = false } = {}) {
    Object.assign(this, { lasts: "1", refusal: "", isPlanned })
    this.node.reset()
    this.matchers.take(matchers)
    this.draw()
  }

  /** Show why it was refused. */
  refuse(text) {
    this.refusal = text
    this.draw()
  }

  draw() {
    patch(
      this.slot,
      this.isPlanned && h("div", { class: "fields", "data-key": "plan" }, kindField(), startField()),
      h(
        "div",
        { class: "lasting", "data-key": "lasting" },
        h("span", { class: "label" }, "For"),
        segments("For how long", LASTING, this.lasts, (value) => this.last(value)),
        this.lasts === "until" && untilField(),
      ),
      h(
        "label",
        { class: "why", "data-key": "comment" },
        h("b", {}, "Why"),
        h("input", { class: "field", name: "comment", required: true, maxlength: 256, autocomplete: "off" }),
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
    const ends_at =
      this.lasts === "until"
        ? new Date(until.value)
        : new Date((starts_at ?? new Date()).getTime() + Number(this.lasts) * HOUR_MS)
    this.onSubmit({
      kind: kind?.value ?? "silence",
      matchers: this.matchers.matchers,
      starts_at: starts_at?.toISOString() ?? null,
      ends_at: ends_at.toISOString(),
      comment: comment.value.trim(),
    })
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
