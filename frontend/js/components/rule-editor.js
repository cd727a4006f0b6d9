/** The editor of the rules: YAML with numbered lines, and beside each line what is wrong with it. */

import { h, patch } from "../dom.js"
import { counted, whole } from "../words.js"

// A text that the reader has not saved outlives a look at another page.
let unsaved = null

/**
 * Keeps the text that is typed, and the `version` of the rules that it began as.
 *
 * `acts` has `check(text)`, `save(text)` and `reset()`.
 */
export class RuleEditor {
  constructor(acts) {
    Object.assign(this, { acts, saved: "", version: null, latest: null, problems: [], said: null, replaced: null, isResetting: false })
    this.field = h("textarea", { class: "code-field", "aria-label": "Rules as YAML", spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", oninput: () => this.typed() })
    this.gutter = h("ol", { class: "gutter", "aria-hidden": "true" })
    this.beside = h("div", { class: "beside", "aria-hidden": "true" })
    this.slot = h("div", { class: "editor-acts" })
    this.node = h("div", { class: "editor", "data-own": true }, h("div", { class: "code-frame" }, this.gutter, this.field, this.beside), this.slot)
  }

  get text() {
    return this.field.value
  }

  /** Whether the text differs from what holds. */
  get isChanged() {
    return this.text !== this.saved
  }

  /** Show what holds now; what the reader has typed stays, unless `isDone` says that this is it. */
  take({ text, version, source }, { isDone = false } = {}) {
    const isFirst = this.version === null
    const isTyping = !isFirst && this.isChanged
    Object.assign(this, { saved: text, latest: version, isOwn: source === "project" })
    if (isDone) this.field.value = text
    else if (!isTyping) this.field.value = isFirst && unsaved ? unsaved.text : text
    if (isFirst && unsaved) this.version = unsaved.version
    else if (isDone || !isTyping) this.version = version
    this.keep()
    this.draw()
  }

  /** Somebody else has changed the rules meanwhile: their text stays in sight, and may be replaced. */
  meet(words) {
    this.version = this.latest
    this.answer({ problems: [{ line: null, message: `${words}. Their text is below; save again to replace it.` }], replaced: this.saved })
  }

  /** Put a text into the field, to be looked at and saved. */
  put(text) {
    this.field.value = text
    this.typed()
    this.field.focus()
  }

  /** Show what came of a deed: `problems` are `{line, message}`, `said` is a sentence. */
  answer({ problems = [], said = null, replaced = this.replaced }) {
    Object.assign(this, { problems, said, replaced, isResetting: false })
    this.draw()
  }

  typed() {
    Object.assign(this, { problems: [], said: null, isResetting: false })
    this.keep()
    this.draw()
  }

  keep() {
    if (!this.isChanged) this.version = this.latest
    unsaved = this.isChanged ? { text: this.text, version: this.version } : null
  }

  draw() {
    const lines = Math.max(1, this.text.split("\n").length)
    const byLine = Map.groupBy(this.problems, ({ line }) => line)
    this.field.rows = lines + 1
    this.field.toggleAttribute("aria-invalid", this.problems.length > 0)
    patch(this.gutter, Array.from({ length: lines }, (_, at) => h("li", { class: byLine.has(at + 1) ? "is-wrong" : null }, String(at + 1))))
    patch(this.beside, [...byLine].filter(([line]) => line).map(([line, found]) => besideLine(line, found)))
    patch(this.slot, this.refusals(), this.said && h("p", { class: "said", "data-key": "said" }, this.said), this.buttons(), this.wasReplaced())
  }

  refusals() {
    if (!this.problems.length) return null
    return h(
      "div",
      { class: "refused", role: "alert", "data-key": "refused" },
      h("b", {}, `${counted(this.problems.length, "thing")} to mend; nothing was changed.`),
      h("ul", {}, this.problems.map(({ line, message }) => h("li", {}, line ? h("button", { class: "text-button", type: "button", onclick: () => this.goTo(line) }, `Line ${whole(line)}`) : null, line ? `: ${message}` : message))),
    )
  }

  buttons() {
    const { isChanged } = this
    return h(
      "div",
      { class: "acts", "data-key": "acts" },
      h("button", { class: "button is-primary", type: "button", disabled: !isChanged, onclick: () => this.acts.save(this.text) }, "Save"),
      h("button", { class: "button", type: "button", onclick: () => this.acts.check(this.text) }, "Check"),
      isChanged && h("button", { class: "text-button", type: "button", "data-key": "discard", onclick: () => this.put(this.saved) }, "Discard changes"),
      this.isOwn && this.resetting(),
    )
  }

  /** Going back takes the project's own text away, so it is asked for twice, and the text stays in sight. */
  resetting() {
    const set = (isResetting) => () => (Object.assign(this, { isResetting }), this.draw())
    if (!this.isResetting) return h("button", { class: "text-button", type: "button", "data-key": "reset", onclick: set(true) }, "Back to the defaults\u2026")
    return [
      h("button", { class: "button is-risky", type: "button", "data-key": "reset", onclick: this.acts.reset }, "Drop the project\u2019s own rules"),
      h("button", { class: "text-button", type: "button", "data-key": "no", onclick: set(false) }, "Keep them"),
    ]
  }

  wasReplaced() {
    if (this.replaced === null || this.replaced === this.text) return null
    return h(
      "details",
      { class: "replaced", "data-key": "replaced" },
      h("summary", {}, "The other text"),
      h("pre", { class: "code" }, h("code", {}, this.replaced)),
      h("button", { class: "button", type: "button", onclick: () => this.put(this.replaced) }, "Put it back into the editor"),
    )
  }

  goTo(line) {
    const start = this.text.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0)
    const end = this.text.indexOf("\n", start)
    this.field.focus()
    this.field.setSelectionRange(start, end < 0 ? this.text.length : end)
    this.gutter.children[line - 1]?.scrollIntoView({ block: "center" })
  }
}

function besideLine(line, found) {
  const more = found.length > 1 ? ` (and ${whole(found.length - 1)} more)` : ""
  return h("p", { "data-key": String(line), style: `--line: ${line}`, title: found.map(({ message }) => message).join("\n") }, `${found[0].message}${more}`)
}

/** What a refusal of the rules says of which line; of none where it is about something else. */
export function problemsOf({ message, problem }) {
  const known = (problem?.errors ?? []).map(({ line = null, field, message: words }) => ({ line, message: field && !line ? `${field}: ${words}` : words }))
  return known.length ? known : [{ line: null, message }]
}
