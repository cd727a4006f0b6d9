/** Which steps a job records, with a form to change it, and the operations that its recorders dropped. */

import { segments } from "../../components/buttons.js"
import { workerHref, workerName } from "../../components/culprits.js"
import { isOver } from "../../components/state-icon.js"
import { h, patch } from "../../lib/dom.js"
import { ago, contained, counted, whole } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const CHOICES = [
  ["all", "Every step"],
  ["some", "Some"],
  ["none", "None"],
]
const MAX_EVERY = 1_000_000

/** The plan in words: "10 of every 100 steps". */
function planWords({ enabled, every, steps }) {
  if (!enabled) return "no step"
  return every === 1 ? "every step" : `${whole(steps)} of every ${whole(every)} steps`
}

/** The note bar of a job whose recording is off; null for any other. */
export function recordingNote(job) {
  const { recording } = job
  const { enabled, has_begun, from_step } = recording
  if (enabled || !has_begun || isOver(job)) return null
  return {
    fact: "Nothing is recorded.",
    consequence: `Recording is off from step ${whole(from_step)}: there are no newer figures.`,
  }
}

/** The card with its form; `onChoose(asked)` sends it, and throws where it is refused. */
export class RecordingCard {
  constructor({ base, onChoose }) {
    Object.assign(this, { base, onChoose, job: null, picked: null, refusal: "", isOpen: false })
    this.node = h("section", { class: "card recording", "data-own": true, "aria-label": "Recording" })
    this.form = h("form", { class: "form", "data-own": true, onsubmit: (event) => this.submit(event) })
  }

  /** Show the plan in force. */
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
      recording.set_by && ["Set", `${ago(new Date(recording.set_at))}, by ${contained(recording.set_by)}`],
      ["Dropped operations", dropped(drops)],
      drops?.worst.length > 0 && ["Most by", worst(this.base, drops)],
    ]
    patch(
      this.node,
      h("header", {}, h("h2", {}, "Recording")),
      h(
        "dl",
        { class: "facts" },
        rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
      may("admin") &&
        !this.isOpen &&
        h(
          "button",
          { class: "text-button", type: "button", "data-key": "open", onclick: () => this.open() },
          "Change which steps",
        ),
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
      picked === "some" &&
        h(
          "div",
          { class: "fields", "data-key": "some" },
          number("steps", "The first", recording.steps),
          number("every", "of every", recording.every === 1 ? 100 : recording.every),
        ),
      h("p", { class: "quiet", "data-key": "when" }, "All ranks change at the same upcoming step, without a restart."),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refusal),
      h(
        "div",
        { class: "acts", "data-key": "acts" },
        h("button", { class: "button", type: "submit" }, "Save"),
        h("button", { class: "button", type: "button", onclick: () => this.close() }, "Cancel"),
      ),
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
    if (asked.steps > asked.every)
      return this.refuse(`Of ${counted(asked.every, "step")} at most ${whole(asked.every)} can be recorded.`)
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
  return h(
    "label",
    {},
    h("b", {}, label),
    h("input", { class: "field", name, type: "number", min: 1, max: MAX_EVERY, step: 1, required: true, value }),
  )
}

function dropped(drops) {
  if (!drops) return "not reported"
  return drops.total ? `${counted(drops.total, "operation")}, by ${counted(drops.num_workers, "worker")}` : "none"
}

function worst(base, { worst: [first] }) {
  return [h("a", { href: workerHref({ base }, first) }, workerName(first)), `, ${counted(first.dropped, "operation")}`]
}
