/** One job: what it costs, who and what is slow, step by step. */

import { changeJobs } from "../../components/job-lifecycle.js"
import { excludedOperations, missingDataNote } from "../../components/missing-data.js"
import { noteBar } from "../../components/notices.js"
import { STATE_WORDS } from "../../components/state-icon.js"
import { updateAddress } from "../../lib/address.js"
import { getAll, getJsonOrNull, send } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { capitalized, contained, isKnown, tidy } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"
import { onTheme } from "../../lib/theme.js"
import { timedText } from "../../lib/times.js"
import { AlertLog } from "./alert-log.js"
import { AlertsCard } from "./alerts-card.js"
import { jobHead } from "./head.js"
import { Highlight, pinnedBar } from "./highlight.js"
import { editLabels } from "./labels-dialog.js"
import { beforeOnset, choiceInAddress, endsOf, load, meanStep, pickOfSteps, shownWords, timeLeft } from "./load.js"
import { lifecycleNote, moreMenu } from "./more-menu.js"
import { Panels } from "./panels.js"
import { recordingNote } from "./recording-card.js"
import { Scrubber } from "./scrubber.js"
import { ShareBox } from "./share-box.js"
import { jobStats } from "./stats.js"

const MAX_WINDOWS = 2000
// Texts such as "3 s ago" are redrawn this often.
const AGAIN_MS = 5000

/** Draw one job into `root`; returns a function that leaves the page. */
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
    this.highlight = new Highlight({
      onPin: (place) => this.pin(place),
      onRange: (first, last) => this.pickSteps(first, last),
      onFollow: () => this.pick("recent"),
    })
    this.highlight.show(this.choice.pinned)
    this.scrubber = new Scrubber({ onPick: (pick) => this.pick(pick), onPickTime: (time) => this.pickTime(time) })
    this.share = new ShareBox({ base: this.base, shown: () => sharedSteps(this.seen, this.choice), onRefused })
    this.alerts = new AlertsCard({ jobId: this.jobId, onRefused })
    this.alertLog = new AlertLog({ jobId: this.jobId, onLoad: () => this.seen && this.panels.arrange() })
    this.slots = {
      head: slot("job-head"),
      stats: slot("job-stats"),
      panels: slot("panels job-panels"),
      pinned: slot("job-pinned"),
    }
    this.panels = new Panels(this.slots.panels, {
      base: this.base,
      highlight: this.highlight,
      alertLog: this.alertLog,
      onSort: (sort) => this.sort(sort),
      onRecord: (asked) => this.record(asked),
      onAnnotated: () => this.refresh(),
      onRefused,
    })
  }

  begin() {
    this.place()
    this.refresh()
    this.alerts.begin()
    const onKey = (event) => event.key === "Escape" && this.highlight.free()
    document.addEventListener("keydown", onKey)
    const timer = setInterval(() => this.draw(), AGAIN_MS)
    this.stops = [
      () => clearInterval(timer),
      onChange((changed) => (!changed || changed.has(this.jobId)) && this.refresh()),
      onTheme(() => this.panels.load(this.seen, this.choice, true)),
      () => document.removeEventListener("keydown", onKey),
    ]
  }

  /** The parts of the page; alerts only of a job that there is. */
  place() {
    const { head, stats, panels, pinned } = this.slots
    patch(this.root, head, this.share.node, this.seen && this.alerts.node, stats, this.scrubber.node, panels, pinned)
  }

  leave() {
    this.hasLeft = true
    this.panels.remove()
    this.alerts.leave()
    this.alertLog.leave()
    for (const stop of this.stops) stop()
  }

  pick(pick, steps = null) {
    const window = pick === "recent" ? null : pick
    updateAddress({ window, steps, step: null, from: null, to: null }, { isStep: true })
    this.chooseAnew()
    this.panels.forgetOrder()
    this.refresh()
  }

  /** Show the windows of a range of clock times; the server knows which these are. */
  pickTime({ from, to }) {
    updateAddress({ window: null, steps: null, step: null, from, to }, { isStep: true })
    this.chooseAnew()
    this.panels.forgetOrder()
    this.refresh()
  }

  async pickSteps(first, last) {
    const { epoch } = this.seen.result.window
    const windows = await getAll(`${this.base}/windows`, MAX_WINDOWS).catch(() => [])
    const found = pickOfSteps(
      windows.filter((window) => window.epoch === epoch),
      first,
      last,
    )
    if (found && !this.hasLeft) this.pick(found.pick, found.steps)
  }

  pin({ dp, stage, step }) {
    const pinned = { ...this.choice.pinned }
    if (dp !== undefined && stage !== undefined) Object.assign(pinned, { dp, stage })
    if (step !== undefined) pinned.step = step
    const hasWorker = isKnown(pinned.dp) && isKnown(pinned.stage)
    updateAddress({ worker: hasWorker ? `${pinned.dp}-${pinned.stage}` : null, step: pinned.step ?? null })
    this.chooseAnew()
    this.draw()
  }

  sort(sort) {
    updateAddress({ sort: sort === "rank" ? null : sort })
    this.chooseAnew()
    this.panels.load(this.seen, this.choice)
  }

  /** Set which steps are recorded; throws where that is refused. */
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
    this.highlight.show(this.choice.pinned)
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
    if (!before) {
      this.place()
      this.alertLog.begin()
    }
    this.setSubject({ kind: "job", job, step_s: meanStep(seen), steps: seen.result?.steps })
    if (before && before !== job.state) announce(`${contained(job.name)}: ${STATE_WORDS[job.state]}`)
    document.title = `${contained(job.name)} \u00b7 Paceline`
    this.draw()
    if (seen.result?.steps.length) this.highlight.about(seen.result.steps[0], seen.result.steps.at(-1))
    this.panels.load(seen, this.choice)
  }

  draw() {
    const { seen, choice, base } = this
    if (!seen) return
    const { job, ribbon, result, window } = seen
    const isNow = choice.pick === "recent"
    patch(
      this.slots.head,
      jobHead({
        ...seen,
        base,
        steps: choice.steps,
        pinned: choice.pinned,
        before: beforeOnset(ribbon),
        more: moreMenu({
          job,
          onchange: (name) => this.change(name),
          onlabels: () => editLabels(job, () => this.refresh()),
        }),
        onShare: () => this.share.toggle(),
      }),
      this.note(),
    )
    const inNoFigure = excludedOperations(job)
    const isSinceOnset = choice.pick === "since-onset" && ribbon.since_onset !== null
    patch(
      this.slots.stats,
      jobStats(job, result, { isNow, money, isSinceOnset }),
      inNoFigure && h("p", { class: "left-out" }, inNoFigure),
    )
    const words = shownWords({ result, steps: choice.steps, job, left: timeLeft(seen), isSinceOnset })
    this.scrubber.show({ ribbon, pick: choice.pick, windows: endsOf(window, result), words, time: choice.time })
    this.drawPinned()
  }

  /** Draw the bar of the pinned worker: first its name, then its figures once they are loaded. */
  async drawPinned() {
    const { pinned } = this.choice
    const { window, result } = this.seen
    const bar = (worker) =>
      patch(
        this.slots.pinned,
        pinnedBar({ pinned, worker, base: this.base, window, onFree: () => this.highlight.free() }),
      )
    const asked = isKnown(pinned.dp)
      ? `${this.base}/workers/${pinned.dp}-${pinned.stage}?window=${encodeURIComponent(window)}`
      : null
    bar(asked && this.pinnedWorker?.asked === asked ? this.pinnedWorker : null)
    const key = `${asked} ${result?.window.id} ${result?.window.revision}`
    if (!asked || this.pinnedWorker?.key === key) return
    const worker = await getJsonOrNull(asked).catch(() => null)
    if (this.hasLeft || this.choice.pinned !== pinned) return
    this.pinnedWorker = { asked, key, ...worker }
    bar(this.pinnedWorker)
  }

  /** Archive, delete or restore the job. */
  change(name) {
    changeJobs(name, [this.seen.job], () => this.refresh())
  }

  note() {
    const { job, result, isStored, window, noStepThen } = this.seen
    const hidden = lifecycleNote(job, (name) => this.change(name))
    if (hidden) return noteBar(hidden)
    if (noStepThen)
      return noteBar({
        fact: "No step in this time.",
        consequence: `${timedText(tidy(contained(capitalized(noStepThen))))}. Shown are the newest steps.`,
        act: this.following(),
      })
    if (!isStored)
      return noteBar({
        fact: "These steps are not stored.",
        consequence: "They are too old, or were never analysed.",
        act: this.following(),
      })
    if (this.choice.pick === "recent") {
      const note = recordingNote(job) ?? missingDataNote(job, result)
      return note && noteBar(note)
    }
    const newest = job.latest_window?.window_id
    if (!newest || endsOf(window, result)?.[1] === newest) return null
    return noteBar({
      fact: "These are older steps.",
      consequence: "The job has moved on since.",
      act: this.following(),
    })
  }

  following() {
    return { text: "Follow the newest", onclick: () => this.pick("recent") }
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
        isMissing
          ? h("a", { href: "/" }, "Back to the fleet")
          : h("button", { class: "text-button", type: "button", onclick: () => this.refresh() }, "Try again"),
      ),
    )
  }
}

/** What the page shows, as a request for a snapshot names it. */
function sharedSteps({ window, ribbon }, { pick, steps }) {
  const onset = pick === "since-onset" ? ribbon.since_onset : null
  return { window, ...(steps && { steps }), ...(onset && { since_step: onset.step }) }
}

function slot(name) {
  return h("div", { class: name, "data-own": true })
}
