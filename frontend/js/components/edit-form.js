/** The form of one change: which operations, where, and what they take instead. */

import { h } from "../dom.js"
import { whole } from "../words.js"
import { OP_GROUPS, opWords, opsWords } from "./edit-words.js"

const KINDS = [
  ["factor", "times as long", "0.8"],
  ["ideal", "their ideal time", null],
  ["set", "exactly", "5 ms"],
  ["add", "more, or less where negative", "-5 ms"],
  ["from-worker", "what they take on worker", "2/1"],
]

/**
 * The form of a draft.
 *
 * `problems` are sentences by field; `shape` has the job's sizes, its operation types and the
 * window's steps; `onChange(changes)` with what the reader wants, `onRemove` where it may go.
 */
export function editForm(draft, { number, problems, shape, onChange, onRemove }) {
  const field = (name, label, placeholder = "all") => typed({ draft, name, label, placeholder, problem: problems[name], onChange })
  return h(
    "fieldset",
    { class: "edit", "data-key": draft.key },
    h("legend", { class: "unseen" }, `Change ${number}`),
    h("div", { class: "where" }, operations(draft, onChange), field("stages", `Stages, ${upTo(shape.pp_size)}`), field("dp_ranks", `Dp ranks, ${upTo(shape.dp_size)}`), field("workers", "Workers, as 3/1"), field("steps", `Steps, ${stepsWords(shape.steps)}`), field("microbatches", "Micro-batches")),
    draft.isPicking && picker(draft, shape.op_types, onChange),
    h("div", { class: "change" }, h("span", { class: "takes" }, "take"), kind(draft, onChange), value(draft, problems.value, onChange), h("span", { class: "gap" }), onRemove && h("button", { class: "text-button", type: "button", "aria-label": `Remove change ${number}`, onclick: onRemove }, "Remove")),
  )
}

/** Give fields what the drafts say, but for the one that is being typed in. */
export function fillIn(form) {
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
      { class: "field pick", type: "button", "aria-expanded": String(draft.isPicking), onclick: () => onChange({ isPicking: !draft.isPicking }) },
      h("span", {}, words.charAt(0).toUpperCase() + words.slice(1)),
      h("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, h("path", { d: draft.isPicking ? "M2 8l4-4 4 4" : "M2 4l4 4 4-4", fill: "none", stroke: "currentColor", "stroke-width": 1.4 })),
    ),
  )
}

function picker(draft, opTypes, onChange) {
  const others = draft.op_types.filter((name) => !OP_GROUPS.includes(name) && !opTypes.includes(name))
  const toggle = (name) => {
    const isIn = draft.op_types.includes(name)
    onChange({ op_types: isIn ? draft.op_types.filter((each) => each !== name) : [...draft.op_types, name] })
  }
  const chip = (name) => h("button", { class: "choice", type: "button", "data-key": name, "aria-pressed": String(draft.op_types.includes(name)), onclick: () => toggle(name) }, opWords(name))
  const every = h("button", { class: "choice", type: "button", "data-key": "every", "aria-pressed": String(!draft.op_types.length), onclick: () => onChange({ op_types: [] }) }, "every operation")
  return h("div", { class: "op-picker", role: "group", "aria-label": "Operations" }, h("div", {}, every, OP_GROUPS.map(chip)), h("div", {}, [...opTypes, ...others].map(chip)))
}

function typed({ draft, name, label, placeholder, problem, onChange }) {
  const id = `${draft.key}-${name}`
  return h(
    "div",
    { class: "labelled-field" },
    h("label", { for: id, title: label }, label),
    h("input", { class: "field", id, "data-value": draft[name], placeholder, autocomplete: "off", spellcheck: "false", "aria-invalid": problem && "true", "aria-describedby": problem && `${id}-problem`, oninput: (event) => onChange({ [name]: event.target.value }) }),
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
    h("input", { class: "field value", "data-key": "value", "data-value": draft.value, placeholder: example, autocomplete: "off", spellcheck: "false", "aria-label": text, "aria-invalid": problem && "true", "aria-describedby": problem && id, oninput: (event) => onChange({ value: event.target.value }) }),
    problem && h("span", { class: "problem", "data-key": "problem", id }, problem),
  ]
}

const upTo = (size) => (size === 1 ? "only 0" : `0\u2013${whole(size - 1)}`)
const stepsWords = (steps) => (steps.length > 1 ? `${whole(steps[0])}\u2013${whole(steps.at(-1))}` : whole(steps[0] ?? 0))
