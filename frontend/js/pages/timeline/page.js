/** One step: what was recorded above what would have been without stragglers. */

import { ChartCard } from "../../components/chart-card.js"
import { noteBar, panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { BASE, getJson, getJsonOrNull } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { contained, seconds, whole } from "../../lib/formatting.js"
import { onTheme } from "../../lib/theme.js"
import { operationCard, PickedOperation } from "./operation.js"
import { openInPerfetto } from "./perfetto.js"
import { TimelinePlot } from "./plot.js"
import { findStep, stepPicker } from "./step.js"

const NUM_WINDOWS = 20

/** Draw one step of one job into `root`; returns a function that leaves the page. */
export function render(root, { jobId }, app) {
  const page = new TimelinePage(root, `/jobs/${jobId}`, app)
  page.refresh()
  const stops = [
    onChange((changed) => (!changed || changed.has(decodeURIComponent(jobId))) && page.changed()),
    onTheme(() => page.shown && page.drawCharts()),
  ]
  return () => {
    for (const stop of stops) stop()
    page.leave()
  }
}

/** What is shown stays as it is while the job goes on: a step that has passed does not change. */
class TimelinePage {
  constructor(root, base, app) {
    this.base = base
    this.app = app
    this.operation = new PickedOperation(() => this.drawPicked())
    this.slots = {
      head: h("div", { class: "page-head", "data-own": true }),
      charts: h("div", { class: "timeline-page", "data-own": true }),
    }
    patch(root, Object.values(this.slots))
  }

  /** Fetch what the address names. */
  async refresh() {
    const wanted = Symbol("refresh")
    this.wanted = wanted
    try {
      await this.lookAround()
      if (!this.windows.length && this.wanted === wanted) return this.sayNothing()
      const found = await findStep(this.base, readAddress("window", "step", "dp"))
      if (this.wanted !== wanted) return
      Object.assign(this, found)
      // So that a reload, or a colleague, sees this step, and not that of a newer window.
      updateAddress({ window: this.shown.window, step: this.shown.step, dp: this.shown.dp_rank })
      this.draw()
      this.operation.start(this.windowPath(), this.query(), this.shown.telling)
    } catch (error) {
      if (this.wanted !== wanted) return
      if (error.status === 401) this.app.onRefused()
      else this.fail(error)
    }
  }

  /** The job went on: its step and its windows do, what is shown does not. */
  changed() {
    if (this.shown) this.lookAround().catch(() => {})
    else if (this.isWaiting) this.refresh()
  }

  /** The job and its closed windows, as they are now. */
  async lookAround() {
    const [job, windows] = await Promise.all([
      getJson(this.base),
      getJsonOrNull(`${this.base}/windows?limit=${NUM_WINDOWS}`),
    ])
    if (this.isLeft) return
    Object.assign(this, {
      job,
      windows: (windows?.items ?? []).filter((each) => each.state !== "open" && each.num_steps),
    })
    this.app.setSubject({ kind: "job", job })
    if (this.shown) this.drawHead()
  }

  leave() {
    this.isLeft = true
    this.wanted = null
    for (const card of Object.values(this.cards ?? {})) card.remove()
  }

  draw() {
    document.title = `Step ${whole(this.shown.step)} \u00b7 ${contained(this.job.name)} \u00b7 Paceline`
    this.drawHead()
    this.makeCards()
    this.drawCharts()
  }

  drawHead() {
    const { sentence, sub } = this.shown
    patch(
      this.slots.head,
      this.crumbs(),
      h("div", { class: "head", "data-key": "head" }, headline({ sentence, sub }), this.picker()),
      this.note && noteBar(this.note),
    )
  }

  crumbs() {
    return h(
      "div",
      { class: "crumbs", "data-key": "crumbs" },
      h("a", { href: "/" }, "Fleet"),
      h("span", {}, "/"),
      h("a", { href: this.base }, contained(this.job?.name ?? decodeURIComponent(this.base.split("/")[2]))),
      h("span", {}, "/"),
      h("b", {}, "Timeline"),
    )
  }

  picker() {
    return stepPicker({
      shown: this.shown,
      windows: this.windows,
      // Not a page of this application: the browser is to fetch it.
      fileHref: `${location.origin}${BASE}${this.windowPath()}/timeline?${this.shown.timeline_query}`,
      isOpening: this.isOpening,
      onDp: (dp) => this.move({ dp }),
      onStep: ({ window, step }) =>
        this.move({ window, step, from: null, to: null, dp: step === null ? null : this.shown.dp_rank }),
      onOpen: () => this.open(),
    })
  }

  move(changes) {
    updateAddress({ op: null, ...changes }, { isStep: true })
    this.note = null
    this.refresh()
  }

  makeCards() {
    this.cards ??= {
      timeline: new TimelinePlot({
        onZoom: (stretch) => this.zoom(stretch),
        onPick: (operation) => this.operation.pick(operation),
      }),
      parts: new ChartCard({ key: "path-parts", title: "Critical path by part" }),
      waiting: new ChartCard({ key: "waiting", title: "Time waiting, by stage", explanation: "share of the step" }),
    }
    this.cards.parts.explain(seconds(this.shown.recorded_s))
    this.place()
  }

  place() {
    const { timeline, parts, waiting } = this.cards
    const { found, error } = this.operation
    patch(
      this.slots.charts,
      timeline.node,
      h(
        "div",
        { class: "below", "data-key": "below" },
        parts.node,
        waiting.node,
        operationCard(found, { base: this.base, window: this.shown.window, error }),
      ),
    )
  }

  drawPicked() {
    if (this.isLeft) return
    this.cards.timeline.pick(this.operation.picked)
    this.place()
  }

  windowPath() {
    return `${this.base}/windows/${encodeURIComponent(this.shown.window)}`
  }

  query() {
    return new URLSearchParams({ step: this.shown.step, dp: this.shown.dp_rank })
  }

  drawCharts() {
    const charts = `${this.windowPath()}/charts`
    this.drawTimeline()
    this.cards.parts.load({ "path-parts": `${charts}/path-parts?step=${this.shown.step}` })
    this.cards.waiting.load({ waiting: `${charts}/waiting?${this.query()}` })
  }

  drawTimeline() {
    const { from, to } = readAddress("from", "to")
    const query = this.query()
    if (from !== null) query.set("from", from)
    if (to !== null) query.set("to", to)
    this.cards.timeline.load(`${this.windowPath()}/charts/timeline?${query}`, {
      isZoomed: from !== null || to !== null,
    })
  }

  zoom(stretch) {
    updateAddress(stretch)
    this.drawTimeline()
  }

  async open() {
    this.isOpening = true
    this.note = null
    const name = `${contained(this.job.name)} step ${this.shown.step}`
    const file = { title: name, fileName: `${this.job.job_id}-${this.shown.step}.json.gz` }
    const opening = openInPerfetto({
      viewerUrl: this.shown.viewer_url,
      path: `${this.windowPath()}/timeline?${this.shown.timeline_query}`,
      ...file,
      onSlow: (words) => this.noteOpening("The trace is not open yet.", words),
    })
    this.drawHead()
    await opening.then(
      () => {
        this.note = null
      },
      (error) => this.noteOpening("The trace was not opened.", error.message),
    )
    this.isOpening = false
    if (!this.isLeft) this.drawHead()
  }

  noteOpening(fact, consequence) {
    this.note = { fact, consequence }
    if (!this.isLeft) this.drawHead()
  }

  sayNothing() {
    this.isWaiting = true
    const why = "Operations are stored when a window closes; no window with a complete step has closed yet."
    this.replace(headline({ state: "not-analysed", sentence: "There is no timeline yet.", sub: why }))
  }

  fail(error) {
    const title = {
      404: "There is no such job or window.",
      422: "There is no such step.",
      409: "There is no timeline of this window.",
    }[error.status]
    if (!title)
      return this.replace(
        headline({ sentence: "Timeline" }),
        panelFailed("Could not load the timeline.", error, () => this.refresh()),
      )
    this.replace(
      headline({ sentence: title, sub: contained(error.message) }),
      h("p", {}, h("a", { href: `${this.base}/timeline` }, "Show the slowest step of the last window")),
    )
  }

  /** Words in place of the charts. */
  replace(...words) {
    patch(this.slots.head, this.crumbs(), words)
    patch(this.slots.charts)
  }
}
