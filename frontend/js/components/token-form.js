/** The form for a new token. */

import { h } from "../dom.js"

const SCOPES = [
  ["ingest", "send operations"],
  ["read", "see jobs"],
  ["write", "acknowledge, silence, save questions"],
  ["admin", "manage tokens, rules and receivers"],
]

/** The form; `onsubmit` gets its event, `refusal` is why the last one was refused. */
export function tokenForm(onsubmit, refusal) {
  return h(
    "form",
    { class: "form token-form", onsubmit },
    h("h3", {}, "Make a token"),
    h(
      "div",
      { class: "fields" },
      h("label", {}, h("b", {}, "Name"), h("input", { class: "field", name: "name", required: true, maxlength: 256, autocomplete: "off" }), h("small", {}, "Where it is used.")),
      h("label", {}, h("b", {}, "Good for, days"), h("input", { class: "field", name: "days", type: "number", min: 0.01, max: 3650, step: "any" }), h("small", {}, "Empty: until it is revoked.")),
      h("label", {}, h("b", {}, "Only for the job"), h("input", { class: "field", name: "job", maxlength: 128, autocomplete: "off" }), h("small", {}, "With the scope ingest alone; empty: all jobs.")),
    ),
    h("fieldset", { class: "scopes" }, h("legend", {}, "Scopes"), SCOPES.map(scope)),
    refusal && h("p", { class: "refused", role: "alert" }, refusal),
    h("button", { class: "button", type: "submit" }, "Make token"),
  )
}

/** What the form says, as POST /tokens takes it. */
export function tokenWanted({ elements }) {
  const scopes = [...elements.scope].filter((box) => box.checked).map((box) => box.value)
  const days = elements.days.value
  return { name: elements.name.value.trim(), scopes, job: elements.job.value.trim() || null, expires_days: days === "" ? null : Number(days) }
}

function scope([name, meaning]) {
  return h("label", {}, h("input", { type: "checkbox", name: "scope", value: name, checked: name === "read" }), h("span", {}, h("b", {}, name), ` ${meaning}`))
}
