/** One job: what it costs, who and what is slow, step by step. */

import { getAll, getJsonOrNull, send } from "../api.js"
import { jobHead } from "../components/job-head.js"
import { jobStats } from "../components/job-stats.js"
import { STATE_WORDS } from "../components/mark.js"
import { noteBar } from "../components/note-bar.js"
import { pinnedBar } from "../components/pinned.js"
import { recordingNote } from "../components/recording.js"
import { Scrubber } from "../components/scrubber.js"
import { leftOut, silenceNote } from "../components/silence.js"
import { Spot } from "../components/spot.js"
import { announce, h, patch } from "../dom.js"
import { onChange } from "../live.js"
import { money } from "../price.js"
import { choose } from "../selection.js"
import { onTheme } from "../theme.js"
import { contained } from "../words.js"
import { beforeOnset, choiceInAddress, endsOf, pickOfSteps, shownWords } from "./job-choice.js"
import { load, meanStep, timeLeft } from "./job-load.js"
import { Panels } from "./job-panels.js"

export const path = /^\/jobs\/(?<jobId>[^/]+)$/
export const title = "Job"

const MAX_WINDOWS = 2000
// What is said of the time goes stale by itself.
const AGAIN_MS = 5000

/** Draw one job into `root`; gives back how to leave. */
export function render(root, { jobId }, app) {
  const page = new JobPage(root, jobId, app)
  page.begin()
  return () => page.leave()
}

class JobPage {
  constructor(root, jobId, { setSubject, onRefused }) {
    this.base = `/jobs/${jobId}`
    this.jobId = decodeURIComponent(jobId)
    Object.assign(this, { root, setSubject, onRefused, seen: null, hasLeft: false, asked: 0 })
    this.choice = choiceInAddress()
    this.spot = new Spot({ onPin: (place) => this.pin(place), onRange: (first, last) => this.pickSteps(first, last), onFollow: () => this.pick("latest") })
    this.spot.show(this.choice.pinned)
    this.scrubber = new Scrubber({ onPick: (pick) => this.pick(pick) })
    this.slots = { head: slot("job-head"), stats: slot("job-stats"), panels: slot("job-panels"), pinned: slot("job-pinned") }
    this.panels = new Panels(this.slots.panels, { base: this.base, spot: this.spot, onSort: (sort) => this.sort(sort), onRecord: (asked) => this.record(asked) })
  }

  begin() {
    const { head, stats, panels, pinned } = this.slots
    patch(this.root, head, stats, this.scrubber.node, panels, pinned)
    this.refresh()
    const onKey = (event) => event.key === "Escape" && this.spot.free()
    document.addEventListener("keydown", onKey)
    const timer = setInterval(() => this.draw(), AGAIN_MS)
    this.stops = [
      () => clearInterval(timer),
      onChange((changed) => (!changed || changed.has(this.jobId)) && this.refresh()),
      onTheme(() => this.panels.load(this.seen, this.choice, true)),
      () => document.removeEventListener("keydown", onKey),
    ]
  }

  leave() {
    this.hasLeft = true
    this.panels.remove()
    for (const stop of this.stops) stop()
  }

  pick(pick, steps = null) {
    choose({ window: pick === "latest" ? null : pick, steps, step: null }, { isStep: true })
    this.chooseAnew()
    this.panels.forgetOrder()
    this.refresh()
  }

  async pickSteps(first, last) {
    const { epoch } = this.seen.result.window
    const windows = await getAll(`${this.base}/windows`, MAX_WINDOWS).catch(() => [])
    const found = pickOfSteps(windows.filter((window) => window.epoch === epoch), first, last)
    if (found && !this.hasLeft) this.pick(found.pick, found.steps)
  }

  pin({ dp, stage, step }) {
    const pinned = { ...this.choice.pinned }
    if (dp !== undefined && stage !== undefined) Object.assign(pinned, { dp, stage })
    if (step !== undefined) pinned.step = step
    const hasWorker = isKnown(pinned.dp) && isKnown(pinned.stage)
    choose({ worker: hasWorker ? `${pinned.dp}-${pinned.stage}` : null, step: pinned.step ?? null })
    this.chooseAnew()
    this.draw()
  }

  sort(sort) {
    choose({ sort: sort === "rank" ? null : sort })
    this.chooseAnew()
    this.panels.load(this.seen, this.choice)
  }

  /** Choose which steps are recorded; throws where that is refused. */
  async record(asked) {
    try {
      await send("PUT", `${this.base}/recording`, asked)
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      throw error
    }
    announce("Saved.")
    await this.refresh()
  }

  chooseAnew() {
    this.choice = choiceInAddress()
    this.spot.show(this.choice.pinned)
  }

  async refresh() {
    const asked = ++this.asked
    const seen = await load(this.base, this.choice, Boolean(this.seen?.ribbon.bins.length)).catch((error) => error)
    if (this.hasLeft || asked !== this.asked) return
    if (!(seen instanceof Error)) this.take(seen)
    else if (seen.status === 401) this.onRefused()
    else this.failed(seen)
  }

  take(seen) {
    const before = this.seen?.job.state
    this.seen = seen
    const { job } = seen
    this.setSubject({ kind: "job", job, step_s: meanStep(seen) })
    if (before && before !== job.state) announce(`${contained(job.name)}: ${STATE_WORDS[job.state]}`)
    document.title = `${contained(job.name)} \u00b7 Paceline`
    this.draw()
    if (seen.result?.steps.length) this.spot.about(seen.result.steps[0], seen.result.steps.at(-1))
    this.panels.load(seen, this.choice)
  }

  draw() {
    const { seen, choice, base } = this
    if (!seen) return
    const { job, ribbon, result, window } = seen
    const isNow = choice.pick === "latest"
    patch(this.slots.head, jobHead({ ...seen, base, steps: choice.steps, pinned: choice.pinned, before: beforeOnset(ribbon) }), this.note())
    const inNoFigure = leftOut(job)
    const isSinceOnset = choice.pick === "since-onset" && ribbon.since_onset !== null
    patch(this.slots.stats, jobStats(job, result, { isNow, money, isSinceOnset }), inNoFigure && h("p", { class: "left-out" }, inNoFigure))
    const words = shownWords({ result, steps: choice.steps, job, left: timeLeft(seen), isSinceOnset })
    this.scrubber.show({ ribbon, pick: choice.pick, windows: endsOf(window, result), words })
    this.drawPinned()
  }

  /** What is known of the pinned worker comes a moment after its name. */
  async drawPinned() {
    const { pinned } = this.choice
    const { window, result } = this.seen
    const bar = (worker) => patch(this.slots.pinned, pinnedBar({ pinned, worker, base: this.base, window, onFree: () => this.spot.free() }))
    const asked = isKnown(pinned.dp) ? `${this.base}/workers/${pinned.dp}-${pinned.stage}?window=${encodeURIComponent(window)}` : null
    bar(asked && this.pinnedWorker?.asked === asked ? this.pinnedWorker : null)
    const key = `${asked} ${result?.window.id} ${result?.window.revision}`
    if (!asked || this.pinnedWorker?.key === key) return
    const worker = await getJsonOrNull(asked).catch(() => null)
    if (this.hasLeft || this.choice.pinned !== pinned) return
    this.pinnedWorker = { asked, key, ...worker }
    bar(this.pinnedWorker)
  }

  note() {
    const { job, result, isStored, window } = this.seen
    if (!isStored) return noteBar({ fact: "These steps are not stored.", consequence: "They are too old, or were never analysed.", act: this.following() })
    if (this.choice.pick === "latest") {
      const note = recordingNote(job) ?? silenceNote(job, result)
      return note && noteBar(note)
    }
    const newest = job.latest_window?.window_id
    if (!newest || endsOf(window, result)?.[1] === newest) return null
    return noteBar({ fact: "These are steps of the past.", consequence: "The job has moved on since.", act: this.following() })
  }

  following() {
    return { text: "Follow the newest", onclick: () => this.pick("latest") }
  }

  failed(error) {
    if (this.seen) return
    const isMissing = error.status === 404
    patch(
      this.slots.head,
      h(
        "div",
        { class: "card panel-state" },
        h("h1", {}, isMissing ? `There is no job ${contained(this.jobId)}` : "Could not load this job"),
        h("p", {}, error.message),
        isMissing ? h("a", { href: "/" }, "Back to the fleet") : h("button", { class: "text-button", type: "button", onclick: () => this.refresh() }, "Try again"),
      ),
    )
  }
}

const isKnown = (value) => value !== null && value !== undefined

function slot(name) {
  return h("div", { class: name, "data-own": true })
}
