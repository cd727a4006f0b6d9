/** What a reader may do about an active alert: acknowledge, silence, assign it, add a note; and undo it. */

import { send } from "../../lib/api.js"
import { announce, h, onEscape, place } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"
import { matchersOf } from "./matchers.js"
import { SilenceForm } from "./silence-form.js"

const MAX_NAME = 128
const MAX_NOTE = 500

/** Buttons of alerts and the form that is open under one of them; a page keeps one of these. */
export class AlertActions {
  /**
   * `alerts()` are the active alerts, `silences()` the silences by id. `onChange()` is called once the server has
   * changed something, `draw()` where only the open form has; `onRefused()` where the session has ended.
   * `rowOf(fingerprint)` finds a row.
   */
  constructor({ alerts, silences, onChange, draw, onRefused, rowOf }) {
    Object.assign(this, { silences, onChange, draw, onRefused, rowOf })
    // Which form is open under which alert, and what was refused there.
    Object.assign(this, { openAt: null, refused: null })
    const onClose = () => this.close()
    this.forms = {
      silence: new SilenceForm({ onSubmit: (wanted) => this.silence(wanted), onClose, alerts }),
      assign: new TextForm({
        name: "Assign an alert",
        label: "Assign to",
        button: "Assign",
        most: MAX_NAME,
        onClose,
        suggestions: () => [...new Set(alerts().map(({ assigned_to }) => assigned_to))].filter(Boolean),
        onSubmit: (to) =>
          this.submit("assign", { to }, to ? `Assigned to ${contained(to)}.` : "Not assigned any more."),
      }),
      note: new TextForm({
        name: "Add a note",
        label: "Note",
        button: "Add note",
        most: MAX_NOTE,
        onClose,
        onSubmit: (text) => this.submit("notes", { text }, "Note added."),
      }),
    }
  }

  /** The buttons of one alert; a button and what undoes it have one data-key, so that the focus stays. */
  buttons(alert) {
    const { acknowledged_at, phase, assigned_to, fingerprint } = alert
    const own = this.ownSilences(alert)
    const which = `${contained(alert.rule)} on ${contained(alert.job_id)}`
    const isOpen = (form) => this.openAt?.fingerprint === fingerprint && this.openAt.form === form
    const toggle = (form, text, label) =>
      button(form, text, label, () => (isOpen(form) ? this.close() : this.open(alert, form)), isOpen(form))
    return [
      phase === "firing" &&
        (acknowledged_at
          ? button("acknowledge", "Unacknowledge", `Remove the acknowledgement of ${which}`, () =>
              this.acknowledge(alert, "DELETE", "No longer acknowledged"),
            )
          : button("acknowledge", "Acknowledge", `Acknowledge ${which}`, () =>
              this.acknowledge(alert, "POST", "Acknowledged"),
            )),
      own.length
        ? button("silence", "End silence", `End the silence of ${which}`, () => this.endSilences(alert, own))
        : toggle("silence", "Silence\u2026", `Silence ${which}`),
      toggle("assign", assigned_to ? "Reassign\u2026" : "Assign\u2026", `Assign ${which}`),
      toggle("note", "Note\u2026", `Add a note to ${which}`),
    ]
  }

  /** What belongs under the alert's row: a refusal, and the form that is open. */
  under({ fingerprint }) {
    return [
      this.refused?.fingerprint === fingerprint &&
        h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refused.text),
      this.openAt?.fingerprint === fingerprint && place(this.forms[this.openAt.form].node),
    ]
  }

  open(alert, form) {
    const { fingerprint, job_id, labels, assigned_to } = alert
    Object.assign(this, { openAt: { fingerprint, form }, refused: null })
    if (form === "silence") this.forms.silence.open(matchersOf(labels), { job: job_id })
    else this.forms[form].open(form === "assign" ? assigned_to : null)
    this.draw()
    this.forms[form].focus()
  }

  close() {
    if (!this.openAt) return
    const { fingerprint, form } = this.openAt
    this.openAt = null
    this.draw()
    this.rowOf(fingerprint)?.querySelector(`[data-key=${form}]`)?.focus()
  }

  acknowledge(alert, method, said) {
    const { fingerprint, rule, job_id } = alert
    const request = () => send(method, `/alerts/${fingerprint}/acknowledge`)
    return this.change(fingerprint, request, `${said}: ${contained(rule)} on ${contained(job_id)}.`)
  }

  /** Active silences of this alert alone: one that covers others is ended in the list of silences. */
  ownSilences({ silenced_by, labels }) {
    const own = JSON.stringify(matchersOf(labels))
    return silenced_by.filter((id) => {
      const matchers = this.silences().get(id)?.matchers
      return matchers && JSON.stringify(matchers.map(inOrder)) === own
    })
  }

  endSilences({ fingerprint }, own) {
    const request = () => Promise.all(own.map((id) => send("DELETE", `/silences/${id}`)))
    return this.change(fingerprint, request, "The silence has ended.")
  }

  async silence(wanted) {
    const { fingerprint } = this.openAt
    await this.change(fingerprint, () => send("POST", "/silences", wanted), "Silenced.", this.forms.silence)
  }

  /** Send what the form of the open alert has; an empty assignee is none. */
  async submit(what, body, said) {
    const { fingerprint, form } = this.openAt
    const path = `/alerts/${fingerprint}/${what}`
    const isRemoval = what === "assign" && !body.to
    const request = () => (isRemoval ? send("DELETE", path) : send("POST", path, body))
    await this.change(fingerprint, request, said, this.forms[form])
  }

  /** Change something; a refusal shows in the form, else under the alert. */
  async change(fingerprint, request, said, form = null) {
    this.refused = null
    // Known before: the server's news of the change may move the row while the answer is on its way.
    const key = form ? this.openAt.form : document.activeElement?.dataset?.key
    try {
      await request()
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      if (form) form.refuse(error.message)
      else this.refused = { fingerprint, text: error.message }
      return this.draw()
    }
    announce(said)
    if (form) this.close()
    await this.onChange()
    this.keepFocus(fingerprint, key)
  }

  /** A row that moves loses the focus: the same button gets it, or the fold that hides it. */
  keepFocus(fingerprint, key) {
    if (!key || document.activeElement !== document.body) return
    const row = this.rowOf(fingerprint)
    const fold = row?.closest("details:not([open])")?.querySelector("summary")
    const target = fold ?? row?.querySelector(`[data-key="${key}"]`)
    target?.focus()
  }
}

const inOrder = ({ label, pattern, is_negative }) => ({ label, pattern, is_negative })

function button(key, text, label, onclick, isExpanded = null) {
  const expanded = isExpanded === null ? {} : { "aria-expanded": String(isExpanded) }
  return h(
    "button",
    { class: "text-button", type: "button", "data-key": key, "aria-label": label, onclick, ...expanded },
    text,
  )
}

let forms = 0

/** A form of one text. */
class TextForm {
  constructor({ name, label, button: text, most, suggestions, onSubmit, onClose }) {
    this.suggestions = suggestions
    this.list = suggestions ? h("datalist", { id: `names-${++forms}` }) : null
    this.field = h("input", {
      class: "field",
      name: "text",
      maxlength: most,
      autocomplete: "off",
      required: !suggestions,
      list: this.list?.id,
    })
    this.refusal = h("p", { class: "refused", role: "alert", hidden: true })
    this.node = h(
      "form",
      {
        class: "form text-form",
        "data-own": true,
        "aria-label": name,
        onsubmit: (event) => {
          event.preventDefault()
          onSubmit(this.field.value.trim())
        },
        onkeydown: onEscape(onClose),
      },
      h("label", {}, h("b", {}, label), this.field),
      this.list,
      h("button", { class: "button is-primary", type: "submit" }, text),
      h("button", { class: "button", type: "button", onclick: onClose }, "Cancel"),
      suggestions && h("p", { class: "quiet" }, "Empty: assigned to nobody."),
      this.refusal,
    )
  }

  /** Start with this text. */
  open(text) {
    this.field.value = text ?? ""
    this.refuse("")
    this.list?.replaceChildren(...this.suggestions().map((value) => h("option", { value })))
  }

  focus() {
    this.field.focus()
  }

  /** Show why it was refused. */
  refuse(text) {
    this.refusal.textContent = text
    this.refusal.hidden = !text
  }
}
