/** Saved questions: the list, saving, sharing and deleting. */

import { getAll, send } from "../../lib/api.js"
import { h } from "../../lib/dom.js"
import { ago, contained } from "../../lib/formatting.js"

const MAX_SAVED = 200

/** The list; `shown` is the one whose link the address is, `onChange()` when anything has changed. */
export class SavedList {
  constructor(base, { onChange, onRefused }) {
    Object.assign(this, { base, onChange, onRefused, saved: null, shown: null, deleted: null, problem: null })
    this.path = `${base}/what-ifs`
  }

  /** Fetch what there is now. */
  async load() {
    this.saved = await getAll(this.path, MAX_SAVED)
  }

  /** The card; `question` is `{window, edits, title}`, `canSave` whether it has an answer. */
  card({ window, edits, title, canSave }) {
    const { saved, shown, deleted, problem } = this
    return savedCard({
      saved,
      shown: shown?.question_id,
      deleted,
      problem,
      canSave,
      suggestedName: title,
      onSave: (name, clear) =>
        this.change(async () => {
          this.shown = await this.post({ name, window, edits })
          clear()
        }),
      onDelete: (question) => this.change(() => this.remove(question)),
      onUndo: () => this.change(() => this.bringBack()),
      hrefOf: ({ question_id }) => `${this.base}/what-if?saved=${question_id}`,
    })
  }

  async remove(question) {
    await send("DELETE", `${this.path}/${question.question_id}`)
    const wasShown = this.shown?.question_id === question.question_id
    if (wasShown) this.shown = null
    this.deleted = { ...question, wasShown }
  }

  async bringBack() {
    const { name, window, edits, wasShown } = this.deleted
    const saved = await this.post({ name, window, edits })
    if (wasShown) this.shown = saved
  }

  async post(question) {
    const saved = await send("POST", this.path, question)
    this.deleted = null
    return saved
  }

  /** Change the list on the server and reload it. */
  async change(request) {
    this.problem = null
    try {
      await request()
      await this.load()
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.problem = error.message
    }
    this.onChange()
  }
}

/**
 * The card; `saved` are the API's, newest first, null while they are on their way.
 *
 * `shown` is the id of the one in the address; `deleted` the one that Undo restores.
 */
function savedCard({ saved, shown, deleted, problem, suggestedName, canSave, onSave, onDelete, onUndo, hrefOf }) {
  return h(
    "section",
    { class: "card saved", "data-key": "saved", "aria-label": "Saved questions" },
    h("header", {}, h("h2", {}, "Saved"), h("span", { class: "explanation" }, "for all who see this job")),
    form({ suggestedName, canSave, onSave }),
    problem && h("p", { class: "problem", role: "alert", "data-key": "problem" }, problem),
    deleted &&
      h(
        "p",
        { class: "undo", "data-key": "undo", role: "status" },
        "Deleted ",
        h("b", {}, contained(deleted.name)),
        ". ",
        h("button", { class: "text-button", type: "button", onclick: onUndo }, "Undo"),
      ),
    saved &&
      (saved.length
        ? h(
            "ol",
            { "data-key": "list" },
            saved.map((each) => row(each, shown, hrefOf, onDelete)),
          )
        : h("p", { class: "quiet", "data-key": "none" }, "None yet.")),
  )
}

function form({ suggestedName, canSave, onSave }) {
  const save = (event) => {
    event.preventDefault()
    const field = event.currentTarget.elements.name
    onSave(field.value.trim() || suggestedName, () => {
      field.value = ""
    })
  }
  return h(
    "form",
    { "data-key": "form", onsubmit: save },
    h("input", {
      class: "field",
      name: "name",
      maxlength: "256",
      placeholder: suggestedName || "A name",
      "aria-label": "Name of this question",
      autocomplete: "off",
    }),
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
    h(
      "button",
      {
        class: "text-button",
        type: "button",
        "aria-label": `Delete ${contained(name)}`,
        onclick: () => onDelete(question),
      },
      "Delete",
    ),
  )
}
