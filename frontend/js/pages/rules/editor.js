/** The editor of alert rules: YAML with numbered lines, errors beside them, and the meaning of each key. */

import { h, patch } from "../../lib/dom.js"
import { counted, whole } from "../../lib/formatting.js"

// Unsaved text is kept while the reader visits another page.
let unsaved = null

/**
 * The text being edited, and the `version` of the rules that it began as.
 *
 * `acts` has `check(text)`, `save(text)` and `reset()`.
 */
export class RuleEditor {
  constructor(acts) {
    Object.assign(this, {
      acts,
      saved: "",
      version: null,
      latest: null,
      problems: [],
      said: null,
      replaced: null,
      isResetting: false,
    })
    this.field = h("textarea", {
      class: "code-field",
      "aria-label": "Rules as YAML",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      wrap: "off",
      oninput: () => this.typed(),
    })
    this.gutter = h("ol", { class: "gutter", "aria-hidden": "true" })
    this.beside = h("div", { class: "beside", "aria-hidden": "true" })
    this.slot = h("div", { class: "editor-acts" })
    this.node = h(
      "div",
      { class: "editor", "data-own": true },
      h("div", { class: "code-frame" }, this.gutter, this.field, this.beside),
      this.slot,
    )
  }

  get text() {
    return this.field.value
  }

  /** Whether the text differs from the rules in force. */
  get isChanged() {
    return this.text !== this.saved
  }

  /** Show the rules in force; typed text stays, unless `isDone`: then it has just been saved. */
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

  /** Another reader has changed the rules meanwhile: show their text, which may be replaced. */
  meet(words) {
    this.version = this.latest
    this.answer({
      problems: [{ line: null, message: `${words}. Their text is below; save again to replace it.` }],
      replaced: this.saved,
    })
  }

  /** Put a text into the field, without saving it. */
  put(text) {
    this.field.value = text
    this.typed()
    this.field.focus()
  }

  /** Show the result of a request: `problems` are `{line, message}`, `said` is a sentence. */
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
    patch(
      this.gutter,
      Array.from({ length: lines }, (_, at) =>
        h("li", { class: byLine.has(at + 1) ? "is-wrong" : null }, String(at + 1)),
      ),
    )
    patch(
      this.beside,
      [...byLine].filter(([line]) => line).map(([line, found]) => besideLine(line, found)),
    )
    patch(
      this.slot,
      this.refusals(),
      this.said && h("p", { class: "said", "data-key": "said" }, this.said),
      this.buttons(),
      this.wasReplaced(),
    )
  }

  refusals() {
    if (!this.problems.length) return null
    return h(
      "div",
      { class: "refused", role: "alert", "data-key": "refused" },
      h("b", {}, `${counted(this.problems.length, "error")} to fix; nothing was changed.`),
      h(
        "ul",
        {},
        this.problems.map(({ line, message }) =>
          h(
            "li",
            {},
            line
              ? h(
                  "button",
                  { class: "text-button", type: "button", onclick: () => this.goTo(line) },
                  `Line ${whole(line)}`,
                )
              : null,
            line ? `: ${message}` : message,
          ),
        ),
      ),
    )
  }

  buttons() {
    const { isChanged } = this
    return h(
      "div",
      { class: "acts", "data-key": "acts" },
      h(
        "button",
        { class: "button is-primary", type: "button", disabled: !isChanged, onclick: () => this.acts.save(this.text) },
        "Save",
      ),
      h("button", { class: "button", type: "button", onclick: () => this.acts.check(this.text) }, "Check"),
      isChanged &&
        h(
          "button",
          { class: "text-button", type: "button", "data-key": "discard", onclick: () => this.put(this.saved) },
          "Discard changes",
        ),
      this.isOwn && this.resetting(),
    )
  }

  /** Resetting deletes the project's own text, so it needs a confirmation, and the text stays visible. */
  resetting() {
    const set = (isResetting) => () => {
      this.isResetting = isResetting
      this.draw()
    }
    if (!this.isResetting)
      return h(
        "button",
        { class: "text-button", type: "button", "data-key": "reset", onclick: set(true) },
        "Back to the defaults\u2026",
      )
    return [
      h(
        "button",
        { class: "button is-risky", type: "button", "data-key": "reset", onclick: this.acts.reset },
        "Drop the project\u2019s own rules",
      ),
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
      h(
        "button",
        { class: "button", type: "button", onclick: () => this.put(this.replaced) },
        "Put it back into the editor",
      ),
    )
  }

  goTo(line) {
    const start =
      this.text
        .split("\n")
        .slice(0, line - 1)
        .join("\n").length + (line > 1 ? 1 : 0)
    const end = this.text.indexOf("\n", start)
    this.field.focus()
    this.field.setSelectionRange(start, end < 0 ? this.text.length : end)
    this.gutter.children[line - 1]?.scrollIntoView({ block: "center" })
  }
}

function besideLine(line, found) {
  const more = found.length > 1 ? ` (and ${whole(found.length - 1)} more)` : ""
  return h(
    "p",
    { "data-key": String(line), style: `--line: ${line}`, title: found.map(({ message }) => message).join("\n") },
    `${found[0].message}${more}`,
  )
}

/** The problems of a refused text, by line; the line is null where it is about something else. */
export function problemsOf({ message, problem }) {
  const known = (problem?.errors ?? []).map(({ line = null, field, message: words }) => ({
    line,
    message: field && !line ? `${field}: ${words}` : words,
  }))
  return known.length ? known : [{ line: null, message }]
}

const KEYS = [
  ["name", "lower-case letters, digits and hyphens; identifies the alerts of the rule"],
  [
    "on",
    "slowdown, waste, gpu-hours-lost, cause, worker, host, optype, stalled, silent-worker, crashed, " +
      "low-fidelity, clock-residual, step-time or fix-outcome",
  ],
  ["jobs, of", "patterns with * and ?: jobs, and causes, workers, hosts or operation types; all where omitted"],
  ["above, clear", "the condition begins at `above` or more and ends below `clear`: 1.10 for slowdowns, 0.1 for 10 %"],
  ["for", "{windows: 3, seconds: 30}: fires after that many complete windows in a row, at least that long"],
  ["keep_firing", "seconds that it stays firing after the condition ends"],
  ["min_confidence", "minimum confidence of a cause, from 0 to 1"],
  ["severity", "info, warning or critical"],
  ["labels, runbook", "labels of its alerts, such as {team: pretraining}, and a link to a runbook"],
  ["inhibits", "names of rules whose alerts of the same job are muted while this one fires"],
  ["cordon", "name of a cordon hook to run; hooks are off unless the operator enables them"],
]

/** The keys with their meanings, collapsed. */
export function ruleKeys() {
  return h(
    "details",
    { class: "keys", "data-key": "keys" },
    h("summary", {}, "What the keys mean"),
    h(
      "dl",
      {},
      KEYS.map(([key, meaning]) => [h("dt", {}, h("code", {}, key)), h("dd", {}, meaning)]),
    ),
  )
}
