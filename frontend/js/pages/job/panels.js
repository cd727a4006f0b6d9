/** The charts and cards of a job's page: which there are, in which order, and which one leads. */

import { ChartCard, legend, waitingCells } from "../../components/chart-card.js"
import { findingsCard, leadingFinding } from "../../components/findings-card.js"
import { fixHistoryCard, loadFixes } from "../../components/fix-history.js"
import { hostHistoryCard } from "../../components/host-history.js"
import { silentRanksNow, silentRanksRemark } from "../../components/missing-data.js"
import { showsWaits } from "../../components/waits.js"
import { getJsonOrNull } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { counted, percentNumber, whole } from "../../lib/formatting.js"
import { AdviceCard } from "./advice-card.js"
import { slowdownScale, waitScale } from "./colour-scale.js"
import { dataUsedCard, eventsCard, fingerprintCard, waitingForCard } from "./fact-cards.js"
import { RecordingCard } from "./recording-card.js"
import { loadScores, scoresCard } from "./scores-card.js"

// From this share on, the stages explain more of the loss than a few workers do.
const MIN_SHARE = 0.5

// The panel that best shows a cause; for all others it is the heatmap of the workers.
const LEADS = {
  "stage-imbalance": "stages",
  "sequence-imbalance": "ranks",
  "gc-pause": "steps",
  "checkpoint-stall": "steps",
  "job-stop": "steps",
  "uniform-slowdown": "steps",
  "late-host": "waited",
}

/** Panels in the left column, in the pair under it, and in the right column, by lead panel. */
const PLACES = {
  workers: { left: ["workers", "steps"], pair: ["optypes", "stages"], right: [] },
  stages: { left: ["stages", "steps"], pair: [], right: ["workers", "optypes"] },
  ranks: { left: ["ranks", "workers", "stages"], pair: [], right: ["lengths", "optypes"] },
  steps: { left: ["steps", "workers"], pair: ["optypes", "stages"], right: [] },
  waited: { left: ["waited", "workers", "steps"], pair: ["optypes", "stages"], right: [] },
}

/** The places of a lead panel; whom the others waited for stands under the workers, else under the lead. */
function placesOf(lead, result) {
  const { left, pair, right } = PLACES[lead ?? "workers"]
  if (left.includes("waited") || !showsWaits(result)) return { left, pair, right }
  const at = left.includes("workers") ? left.indexOf("workers") + 1 : 1
  return { left: left.toSpliced(at, 0, "waited"), pair, right }
}

/** What to do, then cards in two columns; the one that best shows where the loss is comes first. */
export class Panels {
  constructor(root, { base, highlight, alertLog, onSort, onRecord }) {
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
      scores: null,
      fixes: null,
    })
    this.advice = new AdviceCard({ base, onTracked: () => this.askForFixes() })
    this.recording = new RecordingCard({ base, onChoose: onRecord })
    // Made once: what is in them is only changed, so that what the reader opened stays open.
    this.pair = h("div", { class: "pair", "data-own": true })
    this.columns = [h("div", { class: "column", "data-own": true }), h("div", { class: "column", "data-own": true })]
    this.panels = h("div", { class: "panels", "data-own": true }, this.columns)
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
      this.askForScores()
      this.askForFixes()
    }
    if (!seen.result || seen.result.slowdown === null) return this.sayNotAnalysed()
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
    const places = placesOf(this.lead, result)
    const shown = (names) =>
      names.filter((name) => name !== "stages" || job.parallelism.pp_size > 1).map((name) => cards[name])
    for (const card of Object.values(cards)) card.node.classList.toggle("is-lead", card === cards[places.left[0]])
    const nodes = (names) => shown(names).map((card) => card.node)
    patch(this.root, this.advice.isShown && this.advice.node, this.panels)
    const notes = this.notes()
    // Where charts fill the right column, what only experts read goes under the left one.
    const isFull = places.right.length > 0
    patch(this.pair, nodes(places.pair), isFull && notes)
    this.pair.classList.toggle("is-notes", isFull)
    patch(this.columns[0], nodes(places.left), this.pair)
    patch(this.columns[1], this.words(nodes(places.right)), !isFull && notes)
  }

  /** The right column: what is wrong first, then its charts, then what happened. */
  words(charts) {
    const { ribbon, result, job, window } = this.seen
    const host = this.host && hostHistoryCard({ host: this.host, jobId: job.job_id })
    const page = { base: this.base, window, numStages: job.parallelism.pp_size }
    const silence = this.isNow() ? silentRanksRemark(job, page) : null
    return [
      result ? findingsCard(result, { ...page, silence }) : waitingForCard(job),
      fixHistoryCard(this.fixes, () => this.askForFixes()),
      ...charts,
      eventsCard(ribbon.events, this.alertLog.rows()),
      scoresCard(this.scores),
      host,
    ]
  }

  notes() {
    const { ribbon, result, job } = this.seen
    this.recording.show(job)
    const measured = result
      ? [fingerprintCard(result), dataUsedCard(result, ribbon, this.isNow() ? silentRanksNow(job) : null)]
      : []
    return [...measured, this.recording.node]
  }

  isNow() {
    return this.choice.pick === "latest"
  }

  draw() {
    const { result, job, window } = this.seen
    const { steps, sort } = this.choice
    const at = `${this.base}/windows/${encodeURIComponent(window)}/charts`
    const own = steps ? `?steps=${encodeURIComponent(steps)}` : ""
    const { cards } = this
    const isWithheld = result.fidelity?.verdict === "low"
    const above = `${this.base}/charts/steps?window=${encodeURIComponent(window)}`
    const shown = new Set(Object.values(placesOf(this.lead, result)).flat())
    if (shown.has("steps"))
      cards.steps.load({ steps: above, ...(!isWithheld && { "worker-steps": `${at}/worker-steps${own}` }) })
    if (shown.has("ranks"))
      cards.ranks.load({ steps: `${above}&right=bars`, ...(!isWithheld && { "dp-steps": `${at}/dp-steps${own}` }) })
    // Each rank's own clock tells how long it waited: that needs no replay.
    if (shown.has("waited")) cards.waited.load({ "waited-for": `${at}/waited-for${own}` })
    if (isWithheld) return this.withhold(result)
    const sorted = sort ? `${own ? `${own}&` : "?"}sort=${encodeURIComponent(sort)}` : own
    cards.workers.load({ workers: `${at}/workers${sorted}` })
    cards.optypes.load({ optypes: `${at}/optypes${own}` })
    if (job.parallelism.pp_size > 1) cards.stages.load({ stages: `${at}/stages${own}` })
    if (shown.has("lengths") && this.seen.ribbon.bins.some((bin) => !bin.is_open))
      cards.lengths.load({ lengths: `${at}/lengths${own}` })
  }

  withhold({ fidelity, findings }) {
    const percent = percentNumber(fidelity.discrepancy)
    const off = `The simulated step differs from the recorded one by ${percent} %, over the limit of 5 %.`
    const text = findings?.length
      ? `${off} See the findings for the reason; late launches are not in these figures.`
      : `${off} Naming a cause would be a guess.`
    const { workers, stages, optypes, lengths } = this.cards
    for (const card of [workers, stages, optypes, lengths])
      card.say({ markName: "low-fidelity", title: "Withheld: low fidelity", text })
  }

  sayNotAnalysed() {
    const title = this.seen.job.state === "finished" ? "Not analysed" : "Not analysed yet"
    for (const card of Object.values(this.cards))
      card.say({ markName: "not-analysed", title, text: this.seen.summary.sentence })
  }

  /** What other tools have said since; a page without it is still a page. */
  async askForScores() {
    const before = JSON.stringify(this.scores)
    this.scores = await loadScores(this.base).catch(() => this.scores)
    if (JSON.stringify(this.scores) !== before) this.arrange()
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

function leadOf(result) {
  const { findings, m_w, stage_share } = result
  if (findings?.length) {
    const lead = LEADS[leadingFinding(findings).cause] ?? "workers"
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

/** Cards by name; `highlight` is shared by all of them, `onSort(sort)` takes an order of the heatmap. */
function jobCards({ parallelism }, { highlight, sortNow, onSort }) {
  const workers = parallelism.dp_size * parallelism.pp_size
  const steps = (key, title, explanation, below, legend) =>
    new ChartCard({ key, title, explanation, legend, parts: ["steps", below], highlight })
  return {
    workers: new ChartCard({
      key: "workers",
      title: "Which worker",
      explanation: "slowdown if only this worker were slow",
      legend: slowdownScale,
      waiting: () => waitingCells(parallelism),
      highlight,
      controls: workers > 1 ? () => sortField(sortNow(), onSort) : null,
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

function sortField(now, onSort) {
  return h(
    "select",
    { class: "field is-small", "aria-label": "Order of the workers", onchange: (event) => onSort(event.target.value) },
    SORTS.map(([value, text]) => h("option", { value, selected: value === (now ?? "rank") }, text)),
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
