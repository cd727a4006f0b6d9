/** Facts that no recording has: asked in fields, kept in the address, never guessed. */

import { readAddress, updateAddress } from "../../lib/address.js"
import { h, patch } from "../../lib/dom.js"
import { capitalized, contained, tidy } from "../../lib/formatting.js"

// As the API has them; `facts` are those by which a fix asks for the field, where it is not its name.
const FACTS = [
  { name: "layers", label: "Layers of the model", input: number(1, 1000, 1) },
  {
    name: "layout",
    facts: ["layers", "layout"],
    label: "or layers of each stage",
    input: {
      placeholder: "9,9,9,6",
      pattern: "\\s*\\d{1,4}(\\s*,\\s*\\d{1,4})*\\s*",
      title: "A whole number for each stage: 9,9,9,6",
      maxlength: 2048,
    },
  },
  {
    name: "scheduler",
    label: "Scheduler",
    choices: [
      ["", "not said"],
      ["slurm", "Slurm"],
      ["kubernetes", "Kubernetes"],
    ],
  },
  { name: "restart_minutes", label: "Restart, minutes", input: number(0, 10080, "any") },
  {
    name: "checkpoint_minutes",
    label: "Between checkpoints, minutes",
    input: number(0, 10080, "any"),
  },
  {
    name: "expert_loads",
    label: "Tokens of each expert",
    input: { placeholder: "812,40,95,120", maxlength: 4096 },
  },
  {
    name: "expert_share",
    label: "Experts' share of the time, 0 to 1",
    input: number(0, 1, "any"),
  },
  {
    name: "document_lengths",
    label: "Tokens of each document",
    input: { placeholder: "4096,312,78", maxlength: 4096 },
  },
  { name: "max_tokens", label: "Most tokens of a micro-batch", input: number(1, 1e9, 1) },
]

/** Names of the facts in the address and in the API's query. */
export const FACT_NAMES = FACTS.map(({ name }) => name)

/** Whether one of the fields asks for it. */
export const isAsked = (need) => FACTS.some((field) => asksFor(field, need))

const asksFor = ({ name, facts = [name] }, { fact }) => facts.includes(fact)

/** Fields for facts that the fixes need, and for those in the address; one that was shown stays. */
export class FactForm {
  constructor({ onChange }) {
    this.onChange = onChange
    this.shown = new Set()
    this.node = h("form", { class: "facts-asked", "data-own": true, onsubmit: (event) => event.preventDefault() })
  }

  /** Draw what is lacking in `answer`, which may be null, and why the server refused what was typed. */
  draw({ answer, refusal }) {
    const values = readAddress(...FACT_NAMES)
    const lacking = (answer?.not_offered ?? []).filter(({ needs }) => needs.length)
    const needs = [...(answer?.fixes ?? []), ...lacking].flatMap((each) => each.needs)
    for (const each of FACTS)
      if (values[each.name] || needs.some((need) => asksFor(each, need))) this.shown.add(each.name)
    const fields = FACTS.filter(({ name }) => this.shown.has(name))
    this.node.hidden = !fields.length && !lacking.length
    patch(
      this.node,
      h("h3", { "data-key": "title" }, "Missing facts"),
      h(
        "div",
        { "data-key": "lacking" },
        lacking.map(({ fix, reason, needs: own }) =>
          h("p", {}, `${fixName(fix)}: ${tidy(contained(reason))}. ${needed(own)}`),
        ),
      ),
      h(
        "div",
        { class: "fields", "data-key": "fields" },
        fields.map((fact) => field(fact, values[fact.name] ?? "", this.onChange)),
      ),
      h("p", { class: "refused", role: "alert", "data-key": "refused" }, refusal),
    )
  }
}

// Names that are no words; a newer server may have further fixes.
const FIX_NAMES = {
  "move-microbatches": "Move micro-batches",
  "planned-gc": "Planned garbage collection",
  "resplit-stages": "Re-split stages",
  "straggl-ar": "StragglAR",
}

/** The name of a fix in words. */
export const fixName = (fix) => FIX_NAMES[fix] ?? capitalized(fix.replaceAll("-", " "))

/** What a fix needs, as a sentence. */
export const needed = (needs) => `Needed: ${needs.map(({ text }) => contained(text)).join("; ")}.`

function field({ name, label, input, choices }, value, onChange) {
  const id = `fact-${name}`
  const own = { class: "field", id, name, onchange: ({ target }) => take(target, onChange) }
  return h(
    "div",
    { class: "labelled-field", "data-key": name },
    h("label", { for: id }, label),
    choices
      ? h(
          "select",
          own,
          choices.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
        )
      : h("input", { ...own, ...input, value, autocomplete: "off", spellcheck: "false" }),
  )
}

function take(target, onChange) {
  if (!target.reportValidity()) return
  updateAddress({ [target.name]: target.value.trim() })
  onChange()
}

function number(min, max, step) {
  return { type: "number", min, max, step }
}
