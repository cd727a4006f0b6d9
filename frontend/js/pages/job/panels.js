/** The cards of a job's page in reading order: what is wrong, what to do, the charts, other facts, details. */

import { ChartCard, legend, waitingCells } from "../../components/chart-card.js"
import { findingsCard, leadingFinding, ruledOutCard } from "../../components/findings-card.js"
import { fixHistoryCard, loadFixes } from "../../components/fix-history.js"
import { hostHistoryCard } from "../../components/host-history.js"
import { silentRanksNow, silentRanksRemark } from "../../components/missing-data.js"
import { lowFidelityWords, showsWaits } from "../../components/waits.js"
import { getJsonOrNull } from "../../lib/api.js"
import { causeOf } from "../../lib/causes.js"
import { h, patch } from "../../lib/dom.js"
import { counted, isKnown, whole } from "../../lib/formatting.js"
import { AdviceCard } from "./advice-card.js"
import { AnnotationsCard } from "./annotations-card.js"
import { chartRows } from "./chart-rows.js"
import { slowdownScale, waitScale } from "./colour-scale.js"
import { DetailsSection } from "./details-section.js"
import { dataUsedCard, eventsCard, fingerprintCard, waitingForCard } from "./fact-cards.js"
import { RecordingCard } from "./recording-card.js"

// From this share on, the stages explain more of the loss than a few workers do.
const MIN_SHARE = 0.5

// Where a panel is called otherwise than the chart in it.
const PANELS = { "dp-steps": "ranks", "waited-for": "waited" }

/** The panel that best shows a cause. */
function panelOf(cause) {
  const chart = causeOf(cause)?.chart ?? "workers"
  return PANELS[chart] ?? chart
}

/** All panels in their order, by lead panel. */
const ORDERS = {
  workers: ["workers", "steps", "optypes", "stages"],
  stages: ["stages", "steps", "workers", "optypes"],
  ranks: ["ranks", "workers", "stages", "lengths", "optypes"],
  steps: ["steps", "workers", "optypes", "stages"],
  waited: ["waited", "workers", "steps", "optypes", "stages"],
}
// Over steps, over as many ranks, or read before all others: these have the whole width.
const WIDE = new Set(["waterfall", "steps", "ranks", "waited"])
// A grid of few columns and some rows is best seen in half of it.
const isSmall = ({ dp_size, pp_size }) => dp_size <= 8 && pp_size >= 4

/** The order of a lead panel; whom the others waited for stands after the workers, else after the lead. */
function orderOf(lead, result, { pp_size }) {
  const order = ORDERS[lead ?? "workers"].filter((name) => name !== "stages" || pp_size > 1)
  if (!order.includes("waited") && showsWaits(result)) order.splice(order.indexOf("workers") + 1, 0, "waited")
  return hasLosses(result) ? ["waterfall", ...order] : order
}

// As in app/charts/job/waterfall.py.
const MIN_UNEXPLAINED = 0.05

/** Whether there is a loss worth a chart. */
const hasLosses = ({ fidelity, findings, unexplained }) =>
  isKnown(unexplained?.ideal_share) &&
  fidelity?.verdict !== "low" &&
  (findings?.some(({ cost }) => cost > 0) || unexplained.share >= MIN_UNEXPLAINED)

/** Findings, what to do, then the charts; the one that best shows where the loss is comes first. */
export class Panels {
  constructor(root, { base, highlight, alertLog, onSort, onRecord, onAnnotated, onRefused }) {
    Object.assign(this, {
      root,
      base,
      highlight,
      alertLog,
      onSort,
      cards: null,
      lead: null,
      seen: null,
      host: null,
      fixes: null,
    })
    this.advice = new AdviceCard({ base, onTracked: () => this.askForFixes() })
    this.recording = new RecordingCard({ base, onChoose: onRecord })
    this.details = new DetailsSection()
    this.annotations = new AnnotationsCard({ base, onChange: onAnnotated, onRefused })
    // Made once: what is in them is only changed, so that what the reader opened stays open.
    this.charts = h("div", { class: "charts", "data-own": true })
    this.facts = h("div", { class: "other-facts", "data-own": true })
  }

  /** Fetch every chart of the chosen windows; `isRepaint` when only the theme has changed. */
  load(seen, choice, isRepaint = false) {
    if (!seen) return
    Object.assign(this, { seen, choice })
    this.cards ??= jobCards(seen.job, {
      highlight: this.highlight,
      sortNow: () => this.choice.sort,
      onSort: this.onSort,
    })
    if (!isRepaint) {
      this.advice.show(seen, choice)
      this.arrange()
      this.askForFixes()
      this.annotations.load()
    }
    if (!hasFigures(seen)) return
    this.draw()
    if (!isRepaint) this.askForHost()
  }

  /** Let the next window choose its own lead panel; while following, the order stays. */
  forgetOrder() {
    this.lead = null
  }

  /** Stop watching the page. */
  remove() {
    this.advice.remove()
    for (const card of Object.values(this.cards ?? {})) card.remove()
  }

  arrange() {
    const { seen, cards } = this
    const { job, result } = seen
    if (result?.slowdown) this.lead ??= leadOf(result)
    // Without figures no chart has anything to show: what is known takes its place.
    const order = hasFigures(seen) ? orderOf(this.lead, result, job.parallelism) : []
    const lead = order.find((name) => name !== "waterfall")
    const isWide = (name) =>
      WIDE.has(name) || (name === "stages" && name === lead) || (name === "workers" && !isSmall(job.parallelism))
    const rows = chartRows(order, isWide)
    for (const [name, card] of Object.entries(cards)) {
      card.node.classList.toggle("is-lead", name === lead)
      card.node.classList.toggle(
        "is-half",
        rows.some((row) => row.length > 1 && row.includes(name)),
      )
    }
    patch(
      this.charts,
      rows.flat().map((name) => cards[name].node),
    )
    patch(this.facts, this.otherFacts())
    this.details.draw(this.detailCards())
    patch(
      this.root,
      this.finding(),
      order.length > 0 && this.advice.isShown && this.advice.node,
      this.charts,
      this.facts,
      this.details.node,
    )
  }

  /** What is wrong; in its place what a job without figures waits for. */
  finding() {
    const { result, job } = this.seen
    return result ? findingsCard(result, this.page()) : waitingForCard(job)
  }

  /** Where links of the cards lead, and who is silent now. */
  page() {
    const { job, window } = this.seen
    const page = { base: this.base, window, numStages: job.parallelism.pp_size }
    if (!this.isNow()) return { ...page, silence: null, isStalled: false }
    return { ...page, silence: silentRanksRemark(job, page), isStalled: job.state === "stalled" }
  }

  /** What else is known of the job: what happened, fixes that are followed, its host in other jobs. */
  otherFacts() {
    const { ribbon, job } = this.seen
    return [
      eventsCard(ribbon.events, this.alertLog.rows()),
      this.annotations.node,
      fixHistoryCard(this.fixes, () => this.askForFixes()),
      this.host && hostHistoryCard({ host: this.host, jobId: job.job_id }),
    ]
  }

  /** What only experts read. */
  detailCards() {
    const { ribbon, result, job } = this.seen
    this.recording.show(job)
    const measured = result
      ? [dataUsedCard(result, ribbon, this.isNow() ? silentRanksNow(job) : null), fingerprintCard(result)]
      : []
    return [...measured, this.recording.node, result && ruledOutCard(result, this.page())]
  }

  isNow() {
    return this.choice.pick === "recent"
  }

  draw() {
    const { result, job, window } = this.seen
    const { steps, sort } = this.choice
    const at = `${this.base}/windows/${encodeURIComponent(window)}/charts`
    const own = steps ? `?steps=${encodeURIComponent(steps)}` : ""
    const { cards } = this
    const isWithheld = result.fidelity?.verdict === "low"
    const above = `${this.base}/charts/steps?window=${encodeURIComponent(window)}`
    const shown = new Set(orderOf(this.lead, result, job.parallelism))
    if (shown.has("steps"))
      cards.steps.load({ steps: above, ...(!isWithheld && { "worker-steps": `${at}/worker-steps${own}` }) })
    if (shown.has("ranks"))
      cards.ranks.load({ steps: `${above}&right=bars`, ...(!isWithheld && { "dp-steps": `${at}/dp-steps${own}` }) })
    // Each rank's own clock tells how long it waited: that needs no replay.
    if (shown.has("waited")) cards.waited.load({ "waited-for": `${at}/waited-for${own}` })
    if (isWithheld) return this.withhold(result)
    if (shown.has("waterfall")) cards.waterfall.load({ waterfall: `${at}/waterfall${own}` })
    const sorted = sort ? `${own ? `${own}&` : "?"}sort=${encodeURIComponent(sort)}` : own
    cards.workers.load({ workers: `${at}/workers${sorted}` })
    cards.optypes.load({ optypes: `${at}/optypes${own}` })
    if (job.parallelism.pp_size > 1) cards.stages.load({ stages: `${at}/stages${own}` })
    if (shown.has("lengths") && this.seen.ribbon.bins.some((bin) => !bin.is_open))
      cards.lengths.load({ lengths: `${at}/lengths${own}` })
  }

  withhold(result) {
    const off = lowFidelityWords(result)
    const text = result.findings?.length
      ? `${off} See the findings for the reason; late launches are not in these figures.`
      : `${off} Naming a cause would be a guess.`
    const { workers, stages, optypes, lengths } = this.cards
    for (const card of [workers, stages, optypes, lengths])
      card.say({ markName: "low-fidelity", title: "Withheld: low fidelity", text })
  }

  /** What fixes of the job were predicted to win, and won; a page without it is still a page. */
  async askForFixes() {
    const before = JSON.stringify(this.fixes)
    this.fixes = await loadFixes(this.base).catch(() => this.fixes)
    if (JSON.stringify(this.fixes) !== before) this.arrange()
  }

  /** Whether the leading culprit's host was slow elsewhere; asked once for each host. */
  async askForHost() {
    const name = leadingFinding(this.seen.result.findings)?.culprits[0]?.host
    if (!name || this.askedFor === name) return
    this.askedFor = name
    this.host = await getJsonOrNull(`/hosts/${encodeURIComponent(name)}`).catch(() => null)
    if (this.host) this.arrange()
  }
}

const hasFigures = ({ result }) => isKnown(result?.slowdown)

function leadOf(result) {
  const { findings, m_w, stage_share } = result
  if (findings?.length) {
    const lead = panelOf(leadingFinding(findings).cause)
    return lead === "waited" && !showsWaits(result) ? "workers" : lead
  }
  const best = Math.max(...(stage_share ?? []).map((share) => share ?? 0), 0)
  return stage_share?.length > 1 && best >= MIN_SHARE && (m_w ?? 0) < MIN_SHARE ? "stages" : "workers"
}

const SORTS = [
  ["rank", "by rank"],
  ["host", "by host"],
  ["slowdown", "slowest first"],
]
// Of more workers, hosts and racks are found sooner in a grid of their own (app/charts/worker/host_grid.py).
const MANY_WORKERS = 64
const BY_RACK = ["rack", "hosts by rack"]

/** Cards by name; `highlight` is shared by all of them, `onSort(sort)` takes an order of the heatmap. */
function jobCards({ parallelism }, { highlight, sortNow, onSort }) {
  const workers = parallelism.dp_size * parallelism.pp_size
  const steps = (key, title, explanation, below, legend) =>
    new ChartCard({ key, title, explanation, legend, parts: ["steps", below], highlight })
  return {
    waterfall: new ChartCard({
      key: "waterfall",
      title: "From ideal to recorded",
      explanation: "what each cause takes of a step",
    }),
    workers: new ChartCard({
      key: "workers",
      title: "Which worker",
      explanation: "slowdown if only this worker were slow",
      legend: slowdownScale,
      waiting: () => waitingCells(parallelism),
      highlight,
      controls: workers > 1 ? () => sortField(sortNow(), workers > MANY_WORKERS, onSort) : null,
    }),
    waited: new ChartCard({
      key: "waited-for",
      title: "Waited for",
      explanation: "how long the other ranks waited for each rank",
      legend: waitScale,
      highlight,
    }),
    steps: steps(
      "steps",
      "Step time and worst workers",
      workers > 14 ? `14 slowest of ${whole(workers)}` : `${counted(workers, "worker")}, slowest first`,
      "worker-steps",
      stepLegend,
    ),
    ranks: steps("ranks", "Step time and dp ranks", "the slowest rank, step by step", "dp-steps", () => [
      stepLegend(),
      slowdownScale(),
    ]),
    optypes: new ChartCard({ key: "optypes", title: "Where the loss is", explanation: "by operation" }),
    stages: new ChartCard({
      key: "stages",
      title: "Stages",
      explanation: "time of a micro-batch, and share won back",
      legend: stageLegend,
      highlight,
    }),
    lengths: new ChartCard({ key: "lengths", title: "Time against lengths", explanation: "each dot a micro-batch" }),
  }
}

function sortField(now, hasMany, onSort) {
  return h(
    "select",
    { class: "field is-small", "aria-label": "Order of the workers", onchange: (event) => onSort(event.target.value) },
    (hasMany ? [...SORTS, BY_RACK] : SORTS).map(([value, text]) =>
      h("option", { value, selected: value === (now ?? "rank") }, text),
    ),
  )
}

function stepLegend() {
  return legend(
    ["is-recorded", "recorded"],
    ["is-simulated", "simulated"],
    ["is-ideal", "without stragglers"],
    ["is-area", "time lost"],
  )
}

function stageLegend() {
  return legend(["is-forward", "forward"], ["is-backward", "backward"], ["is-mean", "mean over stages"])
}
