/** Questions that were saved with a name, to be asked again, shown to others, or deleted. */

import { h } from "../dom.js"
import { ago, contained } from "../words.js"

/**
 * The card; `saved` are the API's, newest first, null while they are on their way.
 *
 * `shown` is the id of the one in the address; `deleted` the one that can still be brought back.
 */
export function savedCard({ saved, shown, deleted, problem, suggestedName, canSave, onSave, onDelete, onUndo, hrefOf }) {
  return h(
    "section",
    { class: "card saved", "data-key": "saved", "aria-label": "Saved questions" },
    h("header", {}, h("h2", {}, "Saved"), h("span", { class: "explanation" }, "for all who see this job")),
    form({ suggestedName, canSave, onSave }),
    problem && h("p", { class: "problem", role: "alert", "data-key": "problem" }, problem),
    deleted && h("p", { class: "undo", "data-key": "undo", role: "status" }, "Deleted ", h("b", {}, contained(deleted.name)), ". ", h("button", { class: "text-button", type: "button", onclick: onUndo }, "Undo")),
    saved && (saved.length ? h("ol", { "data-key": "list" }, saved.map((each) => row(each, shown, hrefOf, onDelete))) : h("p", { class: "quiet", "data-key": "none" }, "None yet.")),
  )
}

function form({ suggestedName, canSave, onSave }) {
  const save = (event) => {
    event.preventDefault()
    const field = event.currentTarget.elements.name
    onSave(field.value.trim() || suggestedName, () => (field.value = ""))
  }
  return h(
    "form",
    { "data-key": "form", onsubmit: save },
    h("input", { class: "field", name: "name", maxlength: "256", placeholder: suggestedName || "A name", "aria-label": "Name of this question", autocomplete: "off" }),
    h("button", { class: "button", type: "submit", disabled: !canSave }, "Save"),
  )
}

function row(question, shown, hrefOf, onDelete) {
  const { question_id, name, window, saved_at } = question
  return h(
    "li",
    { "data-key": question_id },
    h("a", { href: hrefOf(question), "aria-current": question_id === shown && "true" }, contained(name)),
    h("small", {}, `window ${window}, ${ago(new Date(saved_at))}`),
    h("button", { class: "text-button", type: "button", "aria-label": `Delete ${contained(name)}`, onclick: () => onDelete(question) }, "Delete"),
  )
}
