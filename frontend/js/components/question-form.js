/** The card in which a question is described: one form for each of its changes. */

import { h, patch } from "../dom.js"
import { draftOf, editOf } from "./edit-draft.js"
import { editForm, fillIn } from "./edit-form.js"

const NOTHING = { kind: "factor", value: 1 }

/** What is being described; `onTyped()` while the reader types, `onPicked()` when a deed is done. */
export class QuestionForm {
  constructor({ onTyped, onPicked }) {
    Object.assign(this, { onTyped, onPicked, drafts: [], edits: [], problems: [], refusal: "" })
    this.form = h("div", { class: "edits", "data-own": true })
    this.node = h(
      "section",
      { class: "card question", "data-own": true, "aria-label": "The question" },
      h("header", {}, h("h2", {}, "If these operations"), h("span", { class: "explanation" }, "changes apply in order; an empty field means all")),
      this.form,
    )
  }

  /** Describe these edits from now on; `steps` is a text for the first one's. */
  take(edits, steps = null) {
    this.drafts = edits.length ? edits.map(draftOf) : [draftOf()]
    if (steps) this.drafts[0].steps = steps
    this.read()
  }

  /** Whether all that is typed can be asked. */
  get isWhole() {
    return this.problems.every((each) => !Object.keys(each).length)
  }

  /** Show the forms; `shape` has the job's sizes, its operation types and the window's steps. */
  draw(shape) {
    this.shape = shape
    const one = (draft, at) =>
      editForm(draft, {
        number: at + 1,
        problems: this.problems[at] ?? {},
        shape,
        onChange: (changes) => this.change(draft, changes),
        onRemove: this.drafts.length > 1 ? () => this.set(this.drafts.filter((each) => each !== draft)) : null,
      })
    patch(this.form, this.drafts.map(one), this.refusal && h("p", { class: "problem", role: "alert", "data-key": "refused" }, this.refusal), this.acts())
    fillIn(this.form)
  }

  acts() {
    return h(
      "div",
      { class: "edit-acts", "data-key": "acts" },
      h("button", { class: "button", type: "button", onclick: () => this.set([...this.drafts, draftOf()]) }, "Add a change"),
      h("button", { class: "text-button", type: "button", onclick: () => this.set([draftOf()]) }, "Clear"),
    )
  }

  set(drafts) {
    this.drafts = drafts
    this.read()
    this.onPicked()
  }

  change(draft, changes) {
    Object.assign(draft, changes)
    if ("isPicking" in changes) return this.draw(this.shape)
    this.read()
    this.onTyped()
  }

  /** What the drafts say; a change by the factor 1 is none. Half of a question is not taken. */
  read() {
    const read = this.drafts.map(editOf)
    this.problems = read.map(({ problems }) => problems)
    if (this.isWhole) this.edits = read.map(({ edit }) => edit).filter(({ change }) => !isNothing(change))
  }
}

const isNothing = ({ kind, value }) => kind === NOTHING.kind && value === NOTHING.value
