/** Fields for matchers: a label, whether it is or is not, and a pattern, as many as one likes. */

import { h, patch } from "../dom.js"
import { BUILT_IN } from "./matchers.js"

const MOST = 20
let drafts = 0

/** Keeps what is typed; `onChange()` after each change. */
export class MatcherFields {
  constructor({ legend, none, onChange = () => {} }) {
    Object.assign(this, { none, onChange, drafts: [], name: `matchers-${++drafts}` })
    this.rows = h("div", { class: "matcher-rows" })
    this.node = h(
      "fieldset",
      { class: "matchers", "data-own": true },
      h("legend", {}, legend),
      h("datalist", { id: this.name }, BUILT_IN.map((value) => h("option", { value }))),
      this.rows,
    )
  }

  /** Show these. */
  take(matchers) {
    this.drafts = matchers.map((matcher) => ({ ...matcher, key: `matcher-${++drafts}` }))
    this.draw()
  }

  /** What the fields say; a row without a label is none. */
  get matchers() {
    return this.drafts.map(({ label, pattern, is_negative }) => ({ label: label.trim(), pattern: pattern.trim(), is_negative })).filter(({ label }) => label)
  }

  draw() {
    const add = h("button", { class: "text-button", type: "button", "data-key": "add", onclick: () => this.add() }, "Add a label")
    patch(this.rows, this.drafts.length ? this.drafts.map((draft, at) => this.row(draft, at)) : h("p", { class: "quiet", "data-key": "none" }, this.none), this.drafts.length < MOST && add)
    // What stands in a field is what was typed, not its first value.
    for (const field of this.rows.querySelectorAll("[data-value]")) if (field.value !== field.dataset.value) field.value = field.dataset.value
  }

  row(draft, at) {
    const set = (name) => (event) => this.set(draft, { [name]: event.target.value })
    const number = at + 1
    return h(
      "div",
      { class: "matcher", "data-key": draft.key },
      h("input", { class: "field", list: this.name, "data-value": draft.label, "aria-label": `Label ${number}`, placeholder: "label", maxlength: 64, autocomplete: "off", spellcheck: "false", oninput: set("label") }),
      h("select", { class: "field", "data-value": draft.is_negative ? "is not" : "is", "aria-label": `Label ${number} is or is not`, onchange: (event) => this.set(draft, { is_negative: event.target.value === "is not" }) }, ["is", "is not"].map((value) => h("option", { value }, value))),
      h("input", { class: "field", "data-value": draft.pattern, "aria-label": `Pattern of label ${number}`, placeholder: "pattern with * and ?", maxlength: 256, autocomplete: "off", spellcheck: "false", oninput: set("pattern") }),
      h("button", { class: "text-button", type: "button", "aria-label": `Remove label ${number}`, onclick: () => this.remove(draft) }, "Remove"),
    )
  }

  set(draft, changes) {
    Object.assign(draft, changes)
    this.draw()
    this.onChange()
  }

  add() {
    this.drafts.push({ label: "", pattern: "", is_negative: false, key: `matcher-${++drafts}` })
    this.draw()
    this.rows.querySelector(".matcher:last-of-type input")?.focus()
    this.onChange()
  }

  remove(draft) {
    this.drafts = this.drafts.filter((each) => each !== draft)
    this.draw()
    this.rows.querySelector("[data-key=add]")?.focus()
    this.onChange()
  }
}
