/** The form of a receiver of alerts: a new one, or changes to one that is there. */

import { MatcherFields } from "../../components/alerts/matchers.js"
import {
  FORMATS,
  HEARTBEAT_FORMATS,
  HEARTBEATS_ONLY,
  SIGNED,
  testWords,
} from "../../components/alerts/receiver-words.js"
import { announce, h, patch } from "../../lib/dom.js"
import { capitalized, contained } from "../../lib/formatting.js"

const ADDRESSES = {
  standard: [
    "https://hooks.example.com/paceline",
    "Notifications are signed; the secret is generated here and shown only once.",
  ],
  alertmanager: [
    "https://hooks.example.com/alerts",
    "The payload of Alertmanager, signed; the secret is generated here and shown only once.",
  ],
  "alertmanager-push": [
    "https://alertmanager.example.com",
    "The base address of that Alertmanager; it groups and forwards them.",
  ],
  pagerduty: ["https://events.pagerduty.com/v2/enqueue", "Empty: the address of PagerDuty."],
  slack: ["https://hooks.slack.com/services/...", "The address of an incoming webhook."],
  cloudevents: [
    "https://events.example.com/paceline",
    "Events are signed; the secret is generated here and shown only once.",
  ],
  email: ["mailto:oncall@example.com", "Sent by the mail server in the settings."],
  healthchecks: ["https://hc-ping.com/...", "The check's ping address; an outage is a ping of its /fail."],
}
const SECRETS = { pagerduty: "Routing key", "alertmanager-push": "Bearer token (optional)" }
const SEVERITIES = [
  ["info", "Every severity"],
  ["warning", "Warning and critical"],
  ["critical", "Critical only"],
]

/**
 * The form; `onSubmit(wanted)` with what the API takes, `onClose()` when it is cancelled.
 *
 * `onTest(wanted)` sends a test with the same and returns what came of it, null where it was refused.
 */
export class ReceiverForm {
  constructor({ onSubmit, onTest, onClose }) {
    Object.assign(this, { onSubmit, onTest, onClose, known: null, recipe: null, format: "standard" })
    Object.assign(this, { refusal: "", tested: null })
    this.matchers = new MatcherFields({ legend: "Only alerts whose", none: "Every alert." })
    this.slot = h("div", { class: "form-body" })
    this.rest = h("div", { class: "form-body" })
    this.node = h(
      "form",
      {
        class: "form receiver-form",
        "data-own": true,
        "aria-label": "Receiver",
        onsubmit: (event) => this.submit(event),
      },
      this.slot,
      this.matchers.node,
      this.rest,
    )
  }

  /** Edit an existing receiver, or null for a new one, which a recipe may begin: `name`, `format`, `url`. */
  open(known, recipe = null) {
    const format = known?.format ?? recipe?.format ?? "standard"
    Object.assign(this, { known, recipe, format, refusal: "", tested: null })
    this.matchers.take(known?.matchers ?? [])
    // Values typed for another receiver are dropped.
    this.slot.replaceChildren()
    this.rest.replaceChildren()
    this.draw()
  }

  /** Show why it was refused. */
  refuse(text) {
    Object.assign(this, { refusal: text, tested: null })
    this.draw()
  }

  /** Send a test with what the form says, before anything is saved. */
  async test() {
    if (!this.node.reportValidity()) return
    const wanted = this.wanted()
    if (!wanted) return
    Object.assign(this, { refusal: "", tested: { text: "Sending a test ...", isGood: true } })
    this.draw()
    const { tested } = this
    const found = await this.onTest(wanted)
    if (!found || this.tested !== tested) return
    this.tested = { text: testWords(found, SIGNED.has(this.format)), isGood: found.delivered }
    announce(this.tested.text)
    this.draw()
  }

  draw() {
    const { known, recipe, format, tested } = this
    patch(
      this.slot,
      h("h3", {}, known ? `Change ${contained(known.name)}` : "A new receiver"),
      h(
        "div",
        { class: "fields" },
        nameField(known ?? recipe),
        known ? null : this.formatField(),
        addressField(known, format, recipe?.url),
        secretField(known, format),
        severityField(known),
        heartbeatField(known, format),
      ),
    )
    patch(
      this.rest,
      format !== "email" && headersField(known),
      h(
        "label",
        { class: "check", "data-key": "resolved" },
        h("input", { type: "checkbox", name: "wants_resolved", checked: known?.wants_resolved ?? true }),
        "Also notify when resolved",
      ),
      h(
        "label",
        { class: "check", "data-key": "enabled" },
        h("input", { type: "checkbox", name: "is_enabled", checked: known?.is_enabled ?? true }),
        "Enabled",
      ),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, capitalized(this.refusal)),
      tested && h("p", { class: tested.isGood ? "said" : "refused", "data-key": "tested" }, tested.text),
      h(
        "div",
        { class: "acts", "data-key": "acts" },
        h("button", { class: "button is-primary", type: "submit" }, known ? "Save" : "Add"),
        h("button", { class: "button", type: "button", onclick: () => this.test() }, "Send test"),
        h("button", { class: "button", type: "button", onclick: this.onClose }, "Cancel"),
      ),
    )
  }

  formatField() {
    const pick = (event) => {
      Object.assign(this, { format: event.target.value, tested: null })
      this.draw()
    }
    return h(
      "label",
      { "data-key": "format" },
      h("b", {}, "Kind"),
      h(
        "select",
        { class: "field", name: "format", onchange: pick },
        Object.entries(FORMATS).map(([value, text]) => h("option", { value, selected: value === this.format }, text)),
      ),
    )
  }

  submit(event) {
    event.preventDefault()
    const wanted = this.wanted()
    if (wanted) this.onSubmit(wanted)
  }

  /** What the API takes; null where the headers are invalid, which is said. */
  wanted() {
    const { name, url, secret, headers, min_severity, wants_resolved, is_enabled } = this.node.elements
    const { heartbeat_every_s } = this.node.elements
    const typed = headersOf(headers?.value ?? "")
    if (typed === null) {
      this.refuse("Headers: one per line, such as X-Team: pretraining.")
      return null
    }
    return {
      name: name.value.trim(),
      ...(this.known ? {} : { format: this.format }),
      ...(url.value.trim() && { url: url.value.trim() }),
      ...(secret?.value && { secret: secret.value.trim() }),
      ...(Object.keys(typed).length > 0 && { headers: typed }),
      ...(this.node.elements.drop_headers?.checked && { headers: {} }),
      matchers: this.matchers.matchers,
      min_severity: min_severity.value,
      wants_resolved: wants_resolved.checked,
      is_enabled: is_enabled.checked,
      ...(heartbeat_every_s?.value && { heartbeat_every_s: Number(heartbeat_every_s.value) }),
    }
  }
}

function nameField(known) {
  return h(
    "label",
    { "data-key": "name" },
    h("b", {}, "Name"),
    h("input", {
      class: "field",
      name: "name",
      required: true,
      maxlength: 256,
      value: known?.name ?? "",
      autocomplete: "off",
    }),
  )
}

function addressField(known, format, url = "") {
  const [example, meaning] = ADDRESSES[format]
  return h(
    "label",
    { "data-key": "url" },
    h("b", {}, "Address"),
    h("input", {
      class: "field",
      name: "url",
      required: !known && format !== "pagerduty",
      maxlength: 2048,
      value: url,
      placeholder: known ? known.address : example,
      autocomplete: "off",
      spellcheck: "false",
    }),
    h("small", {}, known ? "Empty: unchanged. The part after the host is never shown." : meaning),
  )
}

function secretField(known, format) {
  if (!SECRETS[format]) return null
  return h(
    "label",
    { "data-key": `secret-${format}` },
    h("b", {}, SECRETS[format]),
    h("input", {
      class: "field",
      name: "secret",
      type: "password",
      required: !known && format === "pagerduty",
      maxlength: 256,
      autocomplete: "off",
    }),
    known?.has_secret && h("small", {}, "Empty: unchanged."),
  )
}

function severityField(known) {
  return h(
    "label",
    { "data-key": "severity" },
    h("b", {}, "Severity"),
    h(
      "select",
      { class: "field", name: "min_severity" },
      SEVERITIES.map(([value, text]) =>
        h("option", { value, selected: value === (known?.min_severity ?? "info") }, text),
      ),
    ),
  )
}

/** Seconds between heartbeats: with them, the receiver is a dead-man's switch and gets no alerts. */
function heartbeatField(known, format) {
  if (known ? !known.heartbeat_every_s : !HEARTBEAT_FORMATS.has(format)) return null
  const isNeeded = format === HEARTBEATS_ONLY || Boolean(known)
  return h(
    "label",
    { "data-key": `heartbeat-${format}` },
    h("b", {}, isNeeded ? "Heartbeat every, seconds" : "Heartbeat every, seconds (optional)"),
    h("input", {
      class: "field",
      name: "heartbeat_every_s",
      type: "number",
      min: 10,
      max: 86_400,
      required: isNeeded,
      value: known?.heartbeat_every_s ?? (isNeeded ? 60 : ""),
    }),
    h("small", {}, "A dead-man's switch: heartbeats while the service works, and no alerts."),
  )
}

function headersField(known) {
  const names = known?.header_names ?? []
  return h(
    "div",
    { class: "headers", "data-key": "headers" },
    h(
      "label",
      {},
      h("b", {}, "Extra headers"),
      h("textarea", {
        class: "code-field",
        name: "headers",
        rows: 2,
        spellcheck: "false",
        placeholder: "Authorization: Bearer ...",
      }),
      h(
        "small",
        {},
        names.length
          ? `Set: ${names.join(", ")}. Empty: unchanged; otherwise these replace all.`
          : "One per line: Authorization or X-... headers. Never shown again.",
      ),
    ),
    names.length > 0 &&
      h("label", { class: "check" }, h("input", { type: "checkbox", name: "drop_headers" }), "Remove all"),
  )
}

/** Headers from lines of "Name: value"; null where a line is invalid. */
function headersOf(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
  const pairs = lines.map((line) => /^([^:\s]+)\s*:\s*(.*)$/.exec(line))
  return pairs.includes(null) ? null : Object.fromEntries(pairs.map(([, name, value]) => [name, value]))
}
