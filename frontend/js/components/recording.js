/** Which steps a job records, and what its recorders had to drop; who may, chooses here. */

import { h, patch } from "../dom.js"
import { may } from "../scopes.js"
import { ago, contained, counted, whole } from "../words.js"
import { workerHref, workerName } from "./culprits.js"
import { segments } from "./segments.js"

const CHOICES = [["all", "Every step"], ["some", "Some"], ["none", "None"]]
const MAX_EVERY = 1_000_000

/** The plan in words: "10 of every 100 steps". */
export function planWords({ enabled, every, steps }) {
  if (!enabled) return "no step"
  return every === 1 ? "every step" : `${whole(steps)} of every ${whole(every)} steps`
}

/** The bar of a job that has come to where it records nothing; null for any other. */
export function recordingNote({ recording, state }) {
  const { enabled, has_begun, from_step } = recording
  if (enabled || !has_begun || state === "finished") return null
  return { fact: "Nothing is recorded.", consequence: `From step ${whole(from_step)} on, this job was told to record no step: figures stand still.` }
}

/** The card; keeps what is being chosen. `onChoose(asked)` sends it, and throws where it is refused. */
export class RecordingCard {
  constructor({ base, onChoose }) {
    Object.assign(this, { base, onChoose, job: null, picked: null, refusal: "", isOpen: false })
    this.node = h("section", { class: "card recording", "data-own": true, "aria-label": "What is recorded" })
    this.form = h("form", { class: "form", "data-own": true, onsubmit: (event) => this.submit(event) })
  }

  /** Show what is so now. */
  show(job) {
    this.job = job
    this.draw()
  }

  draw() {
    const { recording, drops } = this.job
    const isToCome = !recording.has_begun
    const rows = [
      ["Steps", isToCome ? planWords(recording.until_then ?? { enabled: true, every: 1 }) : planWords(recording)],
      isToCome && [`From step ${whole(recording.from_step)} on`, planWords(recording)],
      recording.set_by && ["Chosen", `${ago(new Date(recording.set_at))}, by ${contained(recording.set_by)}`],
      ["Dropped by recorders", dropped(drops)],
      drops?.worst.length > 0 && ["Most of it by", worst(this.base, drops)],
    ]
    patch(
      this.node,
      h("header", {}, h("h2", {}, "What is recorded")),
      h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      may("admin") && !this.isOpen && h("button", { class: "text-button", type: "button", "data-key": "open", onclick: () => this.open() }, "Change which steps"),
      this.isOpen && this.form,
    )
    if (this.isOpen) this.drawForm()
  }

  drawForm() {
    const { recording } = this.job
    const picked = this.picked ?? choiceOf(recording)
    patch(
      this.form,
      segments("Steps to record", CHOICES, picked, (value) => this.pick(value)),
      picked === "some" && h("div", { class: "fields", "data-key": "some" }, number("steps", "The first", recording.steps), number("every", "of every", recording.every === 1 ? 100 : recording.every)),
      h("p", { class: "quiet", "data-key": "when" }, "All ranks change at the same step, a little ahead of the newest, without a restart."),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refusal),
      h("div", { class: "acts", "data-key": "acts" }, h("button", { class: "button", type: "submit" }, "Save"), h("button", { class: "button", type: "button", onclick: () => this.close() }, "Cancel")),
    )
  }

  open() {
    Object.assign(this, { isOpen: true, picked: null, refusal: "" })
    this.draw()
    this.form.reset() // what was typed before and cancelled is gone
    this.form.querySelector("button").focus()
  }

  close() {
    this.isOpen = false
    this.draw()
  }

  pick(value) {
    this.picked = value
    this.drawForm()
  }

  async submit(event) {
    event.preventDefault()
    const asked = this.asked()
    if (asked.steps > asked.every) return this.refuse(`Of ${counted(asked.every, "step")} at most ${whole(asked.every)} can be recorded.`)
    try {
      await this.onChoose(asked)
      this.close()
    } catch (error) {
      this.refuse(error.message)
    }
  }

  refuse(text) {
    this.refusal = text
    this.drawForm()
  }

  asked() {
    const picked = this.picked ?? choiceOf(this.job.recording)
    if (picked === "none") return { enabled: false }
    if (picked === "all") return { enabled: true }
    const { steps, every } = this.form.elements
    return { enabled: true, steps: Number(steps.value), every: Number(every.value) }
  }
}

function choiceOf({ enabled, every }) {
  if (!enabled) return "none"
  return every === 1 ? "all" : "some"
}

function number(name, label, value) {
  return h("label", {}, h("b", {}, label), h("input", { class: "field", name, type: "number", min: 1, max: MAX_EVERY, step: 1, required: true, value }))
}

function dropped(drops) {
  if (!drops) return "not measured: no recorder says"
  return drops.total ? `${counted(drops.total, "operation")}, by ${counted(drops.num_workers, "worker")}` : "none"
}

function worst(base, { worst: [first] }) {
  return [h("a", { href: workerHref({ base }, first) }, workerName(first)), `, ${counted(first.dropped, "operation")}`]
}
