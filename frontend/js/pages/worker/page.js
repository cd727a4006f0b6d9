/** One worker: its course over steps and windows, and its operations against its peers. */

import { ChartCard, legend } from "../../components/chart-card.js"
import { workerName } from "../../components/culprits.js"
import { findingsCard } from "../../components/findings-card.js"
import { hostHistoryCard } from "../../components/host-history.js"
import { panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { readAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { contained, stepRange } from "../../lib/formatting.js"
import { onTheme } from "../../lib/theme.js"
import { hostMatesCard, workerGroupsCard, workerStats } from "./cards.js"

/** Draw one worker into `root`; returns a function that leaves the page. */
export function render(root, { jobId, dpRank, stage }, app) {
  const page = new WorkerPage(root, `/jobs/${jobId}`, `${dpRank}-${stage}`, app)
  page.refresh()
  const stops = [
    onChange((changed) => (!changed || changed.has(decodeURIComponent(jobId))) && page.changed()),
    onTheme(() => page.worker && page.drawCharts()),
  ]
  return () => {
    for (const stop of stops) stop()
    page.leave()
  }
}

class WorkerPage {
  constructor(root, base, id, app) {
    Object.assign(this, { base, app, id })
    this.slots = { head: slot("page-head"), stats: slot(), panels: slot() }
    this.columns = [slot("column"), slot("column")]
    this.panels = h("div", { class: "panels worker-panels", "data-own": true }, this.columns)
    this.cards = makeCards()
    patch(root, Object.values(this.slots))
  }

  get window() {
    return readAddress("window").window ?? "recent"
  }

  /** Ask again, once what is asked for now is here. */
  changed() {
    if (this.isAsking) this.isOld = true
    else if (!this.isMissing) this.refresh()
  }

  async refresh() {
    Object.assign(this, { isAsking: true, isOld: false })
    await this.ask()
    this.isAsking = false
    if (this.isOld && this.wanted) this.changed()
  }

  /** Everything about the worker, asked for at once; its host after it is known. */
  async ask() {
    const wanted = Symbol("ask")
    this.wanted = wanted
    try {
      const query = new URLSearchParams({ window: this.window })
      const [job, worker] = await Promise.all([getJson(this.base), getJson(`${this.base}/workers/${this.id}?${query}`)])
      const host =
        worker.host === null ? null : await getJsonOrNull(`/hosts/${encodeURIComponent(worker.host)}`).catch(() => null)
      if (this.wanted !== wanted) return
      Object.assign(this, { job, worker, host })
      this.app.setSubject({ kind: "job", job })
      this.draw()
    } catch (error) {
      if (this.wanted !== wanted) return
      if (error.status === 401) this.app.onRefused()
      // What is drawn stays when the server is not there for a while.
      else if (!this.worker || error.status) this.fail(error)
    }
  }

  leave() {
    this.wanted = null
    for (const card of Object.values(this.cards)) card.remove()
  }

  draw() {
    const { job, worker } = this
    document.title = `${workerName(worker)} \u00b7 ${contained(job.name)} \u00b7 Paceline`
    const { sentence } = worker
    const sub = [worker.sub, placed(worker)].filter(Boolean).join(" ")
    patch(
      this.slots.head,
      this.crumbs(),
      h("div", { class: "head", "data-key": "head" }, headline({ sentence, sub }), this.acts()),
    )
    patch(this.slots.stats, workerStats(worker))
    this.drawPanels()
    this.drawCharts()
  }

  drawPanels() {
    const { worker, base, window } = this
    const hasPeers = this.job.parallelism.dp_size > 1
    this.cards.ops.explain(hasPeers ? "same stage, other dp ranks" : "other stages")
    patch(this.slots.panels, this.panels)
    patch(this.columns[0], this.cards.course.node, this.cards.ops.node, workerGroupsCard(worker))
    patch(
      this.columns[1],
      worker.findings.length ? findingsCard({ findings: worker.findings }, { base, window }) : nothingFound(worker),
      hostMatesCard(worker, { base, window }),
      hostHistoryCard({ host: this.host, jobId: this.job.job_id }),
    )
  }

  drawCharts() {
    const charts = `${this.base}/workers/${this.id}/charts`
    const query = `window=${encodeURIComponent(this.window)}`
    if (this.worker.slowdown === null && this.worker.verdict !== "low") {
      this.cards.course.say({ markName: "not-analysed", title: "Not measured yet", text: this.worker.sub })
    } else if (this.worker.verdict === "low") {
      this.cards.course.say({ markName: "low-fidelity", title: "Withheld: low fidelity", text: this.worker.sub })
    } else {
      this.cards.course.load({ course: `${charts}/course?${query}` })
    }
    if (this.worker.operations_of) this.cards.ops.load({ ops: `${charts}/ops?${query}` })
    else
      this.cards.ops.say({
        markName: "not-analysed",
        title: "Nothing to compare yet",
        text: "Operations are stored when a window closes.",
      })
  }

  crumbs() {
    const name = this.job?.name ?? decodeURIComponent(this.base.split("/")[2])
    const [dp_rank, stage] = this.id.split("-").map(Number)
    return h(
      "div",
      { class: "crumbs", "data-key": "crumbs" },
      h("a", { href: "/" }, "Fleet"),
      h("span", {}, "/"),
      h("a", { href: `${this.base}${this.query({})}` }, contained(name)),
      h("span", {}, "/"),
      h("b", {}, workerName({ dp_rank, stage })),
      this.worker?.steps.length > 0 &&
        h("span", { class: "shape" }, stepRange(this.worker.steps[0], this.worker.steps.at(-1))),
    )
  }

  acts() {
    const { dp_rank, stage } = this.worker
    const inHeatmap = this.query({ worker: `${dp_rank}-${stage}` })
    return h(
      "nav",
      { class: "acts", "aria-label": "Look closer" },
      h("a", { class: "button", href: `${this.base}${inHeatmap}` }, "Show in heatmap"),
      h("a", { class: "button is-primary", href: `${this.base}/timeline${this.query({ dp: dp_rank })}` }, "Timeline"),
    )
  }

  /** The chosen window, where one is, and what else a link names. */
  query(more) {
    const window = this.window === "recent" ? {} : { window: this.window }
    const text = new URLSearchParams({ ...window, ...more }).toString()
    return text && `?${text}`
  }

  fail(error) {
    // What a job lacks does not come by itself.
    this.isMissing = error.status === 404
    const words = h(
      "div",
      { class: "card panel-state" },
      h("b", {}, "There is no such worker"),
      h("p", {}, error.message),
      h("a", { href: this.base }, "Back to the job"),
    )
    this.worker = null
    patch(this.slots.head, this.crumbs(), headline({ sentence: "Worker" }))
    patch(this.slots.stats)
    patch(
      this.slots.panels,
      this.isMissing ? words : panelFailed("Could not load this worker.", error, () => this.refresh()),
    )
  }
}

function makeCards() {
  return {
    course: new ChartCard({
      key: "course",
      title: "Slowdown over steps",
      explanation: "of the job, if only this worker were slow",
      legend: courseLegend,
    }),
    ops: new ChartCard({ key: "ops", title: "Its operations against its peers", legend: opsLegend }),
  }
}

function nothingFound({ verdict }) {
  const reasons = {
    ok: "No finding of this window names this worker, its stage or its host.",
    low: "Withheld: low fidelity. Naming a cause would be a guess.",
  }
  return h(
    "section",
    { class: "card findings", "data-key": "findings", "aria-label": "Findings" },
    h("header", {}, h("h2", {}, "Findings")),
    h("p", { class: "none" }, reasons[verdict] ?? "Not analysed: no step is complete."),
  )
}

function courseLegend() {
  return legend(["is-recorded", "this worker"], ["is-simulated", "median of the others"], ["is-ideal", "ideal"])
}

function opsLegend() {
  return legend(["is-median", "own median"], ["is-p95", "own 95 %"], ["is-peers", "peers, middle half"])
}

function slot(name = null) {
  return h("div", { class: name, "data-own": true })
}

/** Where its host stands, as far as its recorder says. */
function placed({ rack, switch: connected }) {
  const places = [rack && `in rack ${contained(rack)}`, connected && `on switch ${contained(connected)}`].filter(
    Boolean,
  )
  return places.length ? `Its host is ${places.join(", ")}.` : ""
}
