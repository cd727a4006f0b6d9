/** Label matchers of silences and receivers, and the fields to edit them; matching is as in app/alerts/labels.py. */

import { h, patch } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"

/** Labels that every alert has, besides those of its rule and its job. */
const BUILT_IN = ["job", "rule", "severity", "subject", "cause", "worker", "host", "alertname", "project"]

// The labels that identify one alert: its rule, its job and its subject.
const IDENTITY = ["job", "rule", "subject"]

/** Matchers of one alert, which also match it when it fires again. */
export function matchersOf(labels) {
  return IDENTITY.filter((name) => labels[name]).map((label) => ({
    label,
    pattern: literal(labels[label]),
    is_negative: false,
  }))
}

/** Whether all matchers match; an empty list matches every alert. */
export function allMatch(matchers, labels) {
  return matchers.every(({ label, pattern, is_negative }) => fits(pattern, labels[label] ?? "") !== is_negative)
}

/** In words: "job is llm-*, severity is not info". */
export function matchersWords(matchers) {
  if (!matchers.length) return "every alert"
  return matchers
    .map(
      ({ label, pattern, is_negative }) =>
        `${label} ${is_negative ? "is not" : "is"} ${pattern === "" ? "empty" : contained(plain(pattern))}`,
    )
    .join(", ")
}

/** A pattern that matches a text and nothing else. */
export const literal = (text) => text.replace(/[*?[]/g, "[$&]")

const plain = (pattern) => pattern.replace(/\[([*?[])\]/g, "$1")

/** Whether a pattern with *, ? and [sets] matches a text. */
function fits(pattern, text) {
  const parts = partsOf([...pattern])
  const letters = [...text]
  let [part, at, star, from] = [0, 0, -1, 0]
  while (at < letters.length) {
    if (parts[part] === "*") [star, from] = [part++, at]
    else if (part < parts.length && parts[part](letters[at])) [part, at] = [part + 1, at + 1]
    else if (star < 0) return false
    else [part, at] = [star + 1, ++from]
  }
  return parts.slice(part).every((each) => each === "*")
}

/** A pattern as a list: "*" for any number of characters, else a function that tests one character. */
function partsOf(pattern) {
  const parts = []
  for (let at = 0; at < pattern.length; at += 1) {
    const letter = pattern[at]
    const end = letter === "[" ? endOfSet(pattern, at) : -1
    if (end > 0) parts.push(setOf(pattern.slice(at + 1, end)))
    else parts.push(letter === "*" ? "*" : (other) => letter === "?" || other === letter)
    if (end > 0) at = end
  }
  return parts
}

/** The index at which a set ends: a ] in first place is a member of the set. */
function endOfSet(pattern, start) {
  const first = start + (pattern[start + 1] === "!" ? 2 : 1)
  return pattern.indexOf("]", pattern[first] === "]" ? first + 1 : first)
}

function setOf(letters) {
  const isNegative = letters[0] === "!"
  const members = isNegative ? letters.slice(1) : letters
  const ranges = []
  for (let at = 0; at < members.length; at += 1) {
    const isRange = members[at + 1] === "-" && at + 2 < members.length
    ranges.push([members[at], members[isRange ? at + 2 : at]].map((letter) => letter.codePointAt(0)))
    if (isRange) at += 2
  }
  return (letter) =>
    ranges.some(([low, high]) => low <= letter.codePointAt(0) && letter.codePointAt(0) <= high) !== isNegative
}

const MOST = 20
let drafts = 0

/** Editable matchers; `onChange()` after each change. */
export class MatcherFields {
  constructor({ legend, none, onChange = () => {} }) {
    Object.assign(this, { none, onChange, drafts: [], name: `matchers-${++drafts}` })
    this.rows = h("div", { class: "matcher-rows" })
    this.node = h(
      "fieldset",
      { class: "matchers", "data-own": true },
      h("legend", {}, legend),
      h(
        "datalist",
        { id: this.name },
        BUILT_IN.map((value) => h("option", { value })),
      ),
      this.rows,
    )
  }

  /** Show these. */
  take(matchers) {
    this.drafts = matchers.map((matcher) => ({ ...matcher, key: `matcher-${++drafts}` }))
    this.draw()
  }

  /** The matchers in the fields; a row without a label is skipped. */
  get matchers() {
    return this.drafts
      .map(({ label, pattern, is_negative }) => ({ label: label.trim(), pattern: pattern.trim(), is_negative }))
      .filter(({ label }) => label)
  }

  draw() {
    const add = h(
      "button",
      { class: "text-button", type: "button", "data-key": "add", onclick: () => this.add() },
      "Add a label",
    )
    patch(
      this.rows,
      this.drafts.length
        ? this.drafts.map((draft, at) => this.row(draft, at))
        : h("p", { class: "quiet", "data-key": "none" }, this.none),
      this.drafts.length < MOST && add,
    )
    // A field keeps its typed value when only its attribute changes, so the value is set here.
    for (const field of this.rows.querySelectorAll("[data-value]"))
      if (field.value !== field.dataset.value) field.value = field.dataset.value
  }

  row(draft, at) {
    const set = (name) => (event) => this.set(draft, { [name]: event.target.value })
    const number = at + 1
    return h(
      "div",
      { class: "matcher", "data-key": draft.key },
      h("input", {
        class: "field",
        list: this.name,
        "data-value": draft.label,
        "aria-label": `Label ${number}`,
        placeholder: "label",
        maxlength: 64,
        autocomplete: "off",
        spellcheck: "false",
        oninput: set("label"),
      }),
      h(
        "select",
        {
          class: "field",
          "data-value": draft.is_negative ? "is not" : "is",
          "aria-label": `Label ${number} is or is not`,
          onchange: (event) => this.set(draft, { is_negative: event.target.value === "is not" }),
        },
        ["is", "is not"].map((value) => h("option", { value }, value)),
      ),
      h("input", {
        class: "field",
        "data-value": draft.pattern,
        "aria-label": `Pattern of label ${number}`,
        placeholder: "pattern with * and ?",
        maxlength: 256,
        autocomplete: "off",
        spellcheck: "false",
        oninput: set("pattern"),
      }),
      h(
        "button",
        {
          class: "text-button",
          type: "button",
          "aria-label": `Remove label ${number}`,
          onclick: () => this.remove(draft),
        },
        "Remove",
      ),
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
