/** The what-if page: what the steps of a window would take if some operations took a different time. */

import { copyButton } from "../../components/buttons.js"
import { ChartCard } from "../../components/chart-card.js"
import { noteBar, panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { LONGEST_VALUE, readAddress, updateAddress } from "../../lib/address.js"
import { BASE, getJson, getJsonOrNull, send } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { capitalized, contained, counted, percentNumber, ratio, stepRange, tidy } from "../../lib/formatting.js"
import { onTheme, theme } from "../../lib/theme.js"
import { answerLegend, answerStats, answerWords } from "./answer.js"
import { commandsCard, questionWords } from "./edit-words.js"
import { askedAtFirst, canonical } from "./edits.js"
import { QuestionForm } from "./form.js"
import { SavedList } from "./saved-questions.js"
import { suggestedCard, suggestions } from "./suggestions.js"

// A question is sent once the reader has stopped typing for so long.
const PAUSE_MS = 250
const NUM_WINDOWS = 100

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, { jobId }, app) {
  const page = new WhatIfPage(root, decodeURIComponent(jobId), app)
  page.begin()
  const stops = [
    onChange((changed) => (!changed || changed.has(page.jobId)) && page.lookAround().catch(() => {})),
    onTheme(() => page.result && page.ask()),
  ]
  return () => {
    for (const stop of stops) stop()
    page.leave()
  }
}

class WhatIfPage {
  constructor(root, jobId, app) {
    Object.assign(this, { jobId, app, answer: null, isRefused: false, way: "curl", asked: 0 })
    this.base = `/jobs/${encodeURIComponent(jobId)}`
    const own = (name) => h("div", { class: name, "data-own": true })
    this.slots = { head: own("page-head"), stats: own("what-if-stats"), columns: own("what-if-panels") }
    this.left = own("column")
    this.right = own("column")
    this.form = new QuestionForm({ onTyped: () => this.askSoon(), onPicked: () => this.ask() })
    this.saved = new SavedList(this.base, {
      onRefused: app.onRefused,
      onChange: () => {
        if (this.hasLeft) return
        this.remember()
        this.draw()
      },
    })
    this.chart = new ChartCard({ key: "steps", title: "Step by step", legend: answerLegend })
    patch(root, Object.values(this.slots))
  }

  /** Fetch what the address names. */
  async begin() {
    try {
      await Promise.all([this.lookAround(), this.saved.load()])
      const { window, edits, shown, firstSteps } = await askedAtFirst(
        this.base,
        this.windows,
        readAddress("window", "steps", "edits", "saved"),
      )
      if (this.hasLeft) return
      this.saved.shown = shown
      if (!window) return this.sayNoWindow()
      await this.take(window, (found) => this.form.take(edits ?? (found[0].cause ? found[0].edits : []), firstSteps))
    } catch (error) {
      if (this.hasLeft) return
      if (error.status === 401) this.app.onRefused()
      else
        patch(
          this.slots.head,
          this.crumbs(),
          panelFailed(
            error.status === 404 ? "There is no such job or question" : "Could not load this page",
            error,
            () => this.begin(),
          ),
        )
    }
  }

  /** Load the job and its closed windows; the window of the question stays. */
  async lookAround() {
    const [job, windows] = await Promise.all([getJson(this.base), getJson(`${this.base}/windows?limit=${NUM_WINDOWS}`)])
    if (this.hasLeft) return
    const hadNone = this.windows?.length === 0
    Object.assign(this, { job, windows: windows.items.filter((each) => each.state !== "open" && each.num_steps) })
    document.title = `What if \u00b7 ${contained(job.name)} \u00b7 Paceline`
    this.app.setSubject({ kind: "job", job })
    if (this.answer) this.drawHead()
    else if (hadNone && this.windows.length) await this.begin()
  }

  /** Change the window of the question; `prepare(suggestions)` before it is sent. */
  async take(window, prepare = () => {}) {
    const result = await getJsonOrNull(`${this.base}/windows/${encodeURIComponent(window)}?arrays=false`)
    if (this.hasLeft) return
    if (!result) return this.sayNoWindow(`Window ${window} is not stored.`)
    Object.assign(this, { window, result, suggestions: suggestions(result) })
    prepare(this.suggestions)
    patch(this.slots.columns, this.left, this.right)
    await this.ask()
  }

  leave() {
    this.hasLeft = true
    this.asked += 1
    clearTimeout(this.timer)
    this.chart.remove()
  }

  askSoon() {
    Object.assign(this, { isRefused: false, asked: this.asked + 1 })
    this.form.refusal = ""
    this.draw()
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.ask(), PAUSE_MS)
  }

  /** Send the question in the form; with `isStep` the browser's "back" undoes it. */
  async ask({ isStep = false } = {}) {
    clearTimeout(this.timer)
    if (!this.form.isWhole) return this.draw()
    const { window } = this
    const { edits } = this.form
    const asked = ++this.asked
    this.remember(isStep)
    this.draw()
    try {
      const result = await send(
        "POST",
        `${this.base}/windows/${encodeURIComponent(window)}/what-if?figure=${theme()}`,
        { edits },
      )
      if (asked !== this.asked) return
      Object.assign(this, { answer: { edits, result, title: this.titleOf(edits) }, isRefused: false })
      this.form.refusal = ""
      this.chart.show({ steps: result.figure })
    } catch (error) {
      if (asked !== this.asked) return
      if (error.status === 401) return this.app.onRefused()
      this.refuse(error)
    }
    this.draw()
  }

  /** The server has refused the question; the figures stay, marked as of the previous one. */
  refuse(error) {
    this.isRefused = true
    const said = contained(error.message).replace(/\.$/, "")
    const old = this.answer ? " The figures are of the previous question." : ""
    this.form.refusal = tidy(`${capitalized(said)}.${old}`)
    if (!this.answer) this.chart.say({ markName: "warning", title: "No answer", text: "This question has no answer." })
  }

  /** The title of the question, where it is a suggested one. */
  titleOf(edits) {
    const text = JSON.stringify(edits)
    return this.suggestions.find((each) => canonical(each.edits) === text)?.title ?? ""
  }

  /** Keep the question in the address, so that a link shows a colleague the same. */
  remember(isStep = false) {
    const text = JSON.stringify(this.form.edits)
    const { shown } = this.saved
    const isShown = shown?.window === this.window && canonical(shown.edits) === text
    if (!isShown) this.saved.shown = null
    this.isTooLong = !isShown && encodeURIComponent(text).length > LONGEST_VALUE
    updateAddress(
      {
        window: isShown ? null : this.window,
        steps: null,
        saved: isShown ? shown.question_id : null,
        edits: isShown || this.isTooLong ? null : text,
      },
      { isStep },
    )
  }

  draw() {
    const isUpToDate = this.answer !== null && !this.isRefused && this.form.isWhole
    this.drawHead()
    patch(this.slots.stats, answerStats(this.answer, this.job.gpus, !isUpToDate))
    this.drawLeft()
    const { edits } = this.form
    const onPick = (suggestion) => {
      this.form.take(suggestion.edits)
      this.ask({ isStep: true })
    }
    const name =
      this.titleOf(edits) || (edits.length > 1 ? `${edits.length} changes` : questionWords(edits).slice(0, 256))
    patch(
      this.right,
      suggestedCard(this.suggestions, JSON.stringify(edits), onPick),
      this.saved.card({ window: this.window, edits, title: name, canSave: edits.length > 0 && isUpToDate }),
    )
  }

  drawLeft() {
    this.form.draw({
      ...this.result.job,
      steps: this.result.steps,
      op_types: Object.keys(this.result.optype_slowdown ?? {}),
    })
    const asked = `${BASE}${this.base}/windows/${encodeURIComponent(this.window)}/what-if`
    patch(
      this.left,
      this.form.node,
      this.chart.node,
      commandsCard({
        edits: this.form.edits,
        path: asked,
        way: this.way,
        onWay: (way) => {
          this.way = way
          this.drawLeft()
        },
      }),
    )
  }

  drawHead() {
    const words = this.answer
      ? answerWords(this.answer, this.job.gpus)
      : { sentence: "What if some operations took a different time?" }
    patch(
      this.slots.head,
      this.crumbs(),
      h("div", { class: "head", "data-key": "head" }, headline(words), this.acts()),
      this.note(),
    )
  }

  crumbs() {
    const job = h("a", { href: this.base }, contained(this.job?.name ?? this.jobId))
    return h(
      "div",
      { class: "crumbs", "data-key": "crumbs" },
      h("a", { href: "/" }, "Fleet"),
      h("span", {}, "/"),
      job,
      h("span", {}, "/"),
      h("b", {}, "What if"),
    )
  }

  acts() {
    const isListed = this.windows.some(({ window_id }) => window_id === this.window)
    const options = [
      ...(isListed ? [] : [[this.window, `Window ${this.window}`]]),
      ...this.windows.map((window) => [window.window_id, windowWords(window)]),
    ]
    const option = ([value, text]) => h("option", { value, selected: value === this.window }, text)
    const copy = { class: "button is-primary", "data-key": "copy", disabled: this.isTooLong }
    return h(
      "div",
      { class: "acts" },
      h(
        "select",
        {
          class: "field",
          "aria-label": "Window",
          "data-key": "window",
          onchange: (event) => this.take(event.target.value),
        },
        options.map(option),
      ),
      copyButton(() => location.href, copy, "Copy link"),
    )
  }

  note() {
    const { verdict, discrepancy } = this.result?.fidelity ?? {}
    if (this.isTooLong)
      return noteBar({
        fact: "This question is too long for a link.",
        consequence: "Save it: the link of a saved question is short.",
      })
    return (
      verdict === "low" &&
      noteBar({
        fact: `The simulated steps differ from the recorded ones by ${percentNumber(discrepancy)} %.`,
        consequence: "Answers are as inaccurate: the limit is 5 %.",
      })
    )
  }

  sayNoWindow(fact = "No window of this run has closed yet.") {
    const sub = `A question is asked of a closed window: ${counted(this.job.window_steps, "complete step")}.`
    patch(this.slots.head, this.crumbs(), headline({ state: "not-analysed", sentence: fact, sub }))
    patch(this.slots.columns, h("p", {}, h("a", { href: this.base }, "Back to the job")))
  }
}

function windowWords({ first_step, last_step, slowdown }) {
  const words = stepRange(first_step, last_step)
  return `${capitalized(words)}${slowdown === null ? "" : `, ${ratio(slowdown)}`}`
}
