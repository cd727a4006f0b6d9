/** A job's saved questions: asked for, added to, deleted, brought back. */

import { getAll, send } from "../api.js"
import { savedCard } from "./saved-questions.js"

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
      onSave: (name, clear) => this.keep(async () => {
        this.shown = await this.post({ name, window, edits })
        clear()
      }),
      onDelete: (question) => this.keep(() => this.remove(question)),
      onUndo: () => this.keep(() => this.bringBack()),
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

  /** Do what changes them, and show them as they are then. */
  async keep(deed) {
    this.problem = null
    try {
      await deed()
      await this.load()
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.problem = error.message
    }
    this.onChange()
  }
}
