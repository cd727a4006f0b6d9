/** The form of a question: one fieldset for each of its edits. */

import { h, patch } from "../../lib/dom.js"
import { capitalized, whole } from "../../lib/formatting.js"
import { OP_GROUPS, opsWords, opWords } from "./edit-words.js"
import { draftOf, editOf } from "./edits.js"

const NOTHING = { kind: "factor", value: 1 }

/** The question being edited; `onTyped()` while the reader types, `onPicked()` after a click. */
export class QuestionForm {
  constructor({ onTyped, onPicked }) {
    Object.assign(this, { onTyped, onPicked, drafts: [], edits: [], problems: [], refusal: "" })
    this.form = h("div", { class: "edits", "data-own": true })
    this.node = h(
      "section",
      { class: "card question", "data-own": true, "aria-label": "The question" },
      h(
        "header",
        {},
        h("h2", {}, "If these operations"),
        h("span", { class: "explanation" }, "changes apply in order; an empty field means all"),
      ),
      this.form,
    )
  }

  /** Show these edits; `steps` is the text for the steps of the first one. */
  take(edits, steps = null) {
    this.drafts = edits.length ? edits.map(draftOf) : [draftOf()]
    if (steps) this.drafts[0].steps = steps
    this.read()
  }

  /** Whether every field is valid. */
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
    patch(
      this.form,
      this.drafts.map(one),
      this.refusal && h("p", { class: "problem", role: "alert", "data-key": "refused" }, this.refusal),
      this.acts(),
    )
    fillIn(this.form)
  }

  acts() {
    return h(
      "div",
      { class: "edit-acts", "data-key": "acts" },
      h(
        "button",
        { class: "button", type: "button", onclick: () => this.set([...this.drafts, draftOf()]) },
        "Add a change",
      ),
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

  /** Read the drafts; a factor of 1 is no change. An incomplete question keeps the previous edits. */
  read() {
    const read = this.drafts.map(editOf)
    this.problems = read.map(({ problems }) => problems)
    if (this.isWhole) this.edits = read.map(({ edit }) => edit).filter(({ change }) => !isNothing(change))
  }
}

const isNothing = ({ kind, value }) => kind === NOTHING.kind && value === NOTHING.value

const KINDS = [
  ["factor", "times as long", "0.8"],
  ["ideal", "their ideal time", null],
  ["set", "exactly", "5 ms"],
  ["add", "more, or less where negative", "-5 ms"],
  ["from-worker", "as long as on worker", "2/1"],
]

/**
 * The form of a draft.
 *
 * `problems` are sentences by field; `shape` has the job's sizes, its operation types and the
 * window's steps; `onChange(changes)` with what the reader wants, `onRemove` where it may go.
 */
function editForm(draft, { number, problems, shape, onChange, onRemove }) {
  const field = (name, label, placeholder = "all") =>
    typed({ draft, name, label, placeholder, problem: problems[name], onChange })
  return h(
    "fieldset",
    { class: "edit", "data-key": draft.key },
    h("legend", { class: "unseen" }, `Change ${number}`),
    h(
      "div",
      { class: "where" },
      operations(draft, onChange),
      field("stages", `Stages, ${upTo(shape.pp_size)}`),
      field("dp_ranks", `Dp ranks, ${upTo(shape.dp_size)}`),
      field("workers", "Workers, as 3/1"),
      field("steps", `Steps, ${stepsWords(shape.steps)}`),
      field("microbatches", "Micro-batches"),
    ),
    draft.isPicking && picker(draft, shape.op_types, onChange),
    h(
      "div",
      { class: "change" },
      h("span", { class: "takes" }, "take"),
      kind(draft, onChange),
      value(draft, problems.value, onChange),
      h("span", { class: "gap" }),
      onRemove &&
        h(
          "button",
          { class: "text-button", type: "button", "aria-label": `Remove change ${number}`, onclick: onRemove },
          "Remove",
        ),
    ),
  )
}

/** Set the fields to the drafts' values, except for the one with the focus. */
function fillIn(form) {
  for (const input of form.querySelectorAll("input, select")) {
    const wanted = input.dataset.value ?? ""
    if (input !== document.activeElement && input.value !== wanted) input.value = wanted
  }
}

function operations(draft, onChange) {
  const words = opsWords(draft.op_types)
  return h(
    "div",
    { class: "labelled-field is-wide" },
    h("span", {}, "Operations"),
    h(
      "button",
      {
        class: "field pick",
        type: "button",
        "aria-expanded": String(draft.isPicking),
        onclick: () => onChange({ isPicking: !draft.isPicking }),
      },
      h("span", {}, capitalized(words)),
      h(
        "svg",
        { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" },
        h("path", {
          d: draft.isPicking ? "M2 8l4-4 4 4" : "M2 4l4 4 4-4",
          fill: "none",
          stroke: "currentColor",
          "stroke-width": 1.4,
        }),
      ),
    ),
  )
}

function picker(draft, opTypes, onChange) {
  const others = draft.op_types.filter((name) => !OP_GROUPS.includes(name) && !opTypes.includes(name))
  const toggle = (name) => {
    const isIn = draft.op_types.includes(name)
    onChange({ op_types: isIn ? draft.op_types.filter((each) => each !== name) : [...draft.op_types, name] })
  }
  const chip = (name) =>
    h(
      "button",
      {
        class: "choice",
        type: "button",
        "data-key": name,
        "aria-pressed": String(draft.op_types.includes(name)),
        onclick: () => toggle(name),
      },
      opWords(name),
    )
  const every = h(
    "button",
    {
      class: "choice",
      type: "button",
      "data-key": "every",
      "aria-pressed": String(!draft.op_types.length),
      onclick: () => onChange({ op_types: [] }),
    },
    "every operation",
  )
  return h(
    "div",
    { class: "op-picker", role: "group", "aria-label": "Operations" },
    h("div", {}, every, OP_GROUPS.map(chip)),
    h("div", {}, [...opTypes, ...others].map(chip)),
  )
}

function typed({ draft, name, label, placeholder, problem, onChange }) {
  const id = `${draft.key}-${name}`
  return h(
    "div",
    { class: "labelled-field" },
    h("label", { for: id, title: label }, label),
    h("input", {
      class: "field",
      id,
      "data-value": draft[name],
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      "aria-invalid": problem && "true",
      "aria-describedby": problem && `${id}-problem`,
      oninput: (event) => onChange({ [name]: event.target.value }),
    }),
    problem && h("span", { class: "problem", id: `${id}-problem` }, problem),
  )
}

function kind(draft, onChange) {
  const pick = (event) => {
    const [picked, , example] = KINDS.find(([each]) => each === event.target.value)
    onChange({ kind: picked, value: example ?? "" })
  }
  return h(
    "select",
    { class: "field", "data-value": draft.kind, "aria-label": "What they take", onchange: pick },
    KINDS.map(([each, text]) => h("option", { value: each, selected: each === draft.kind }, text)),
  )
}

function value(draft, problem, onChange) {
  const [, text, example] = KINDS.find(([each]) => each === draft.kind) ?? KINDS[0]
  if (example === null) return null
  const id = `${draft.key}-value`
  return [
    h("input", {
      class: "field value",
      "data-key": "value",
      "data-value": draft.value,
      placeholder: example,
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": text,
      "aria-invalid": problem && "true",
      "aria-describedby": problem && id,
      oninput: (event) => onChange({ value: event.target.value }),
    }),
    problem && h("span", { class: "problem", "data-key": "problem", id }, problem),
  ]
}

const upTo = (size) => (size === 1 ? "only 0" : `0\u2013${whole(size - 1)}`)
const stepsWords = (steps) =>
  steps.length > 1 ? `${whole(steps[0])}\u2013${whole(steps.at(-1))}` : whole(steps[0] ?? 0)
