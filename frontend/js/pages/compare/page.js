/** Two windows, runs or jobs side by side: what changed. */

import { copyButton } from "../../components/buttons.js"
import { ChartCard, legend } from "../../components/chart-card.js"
import { panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { contained } from "../../lib/formatting.js"
import { onTheme } from "../../lib/theme.js"
import { comparePicker, fillIn } from "./picker.js"
import { causesCard, compareStats, sidesCard } from "./results.js"

const NUM_WINDOWS = 500
const NUM_JOBS = 20
const PAUSE_MS = 150
const CHARTS = ["steps", "optypes", "stages"]

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, app) {
  const page = new ComparePage(root, app)
  page.begin()
  const stops = [onChange((changed) => page.hear(changed)), onTheme(() => page.found && page.drawCharts())]
  return () => {
    for (const stop of stops) stop()
    page.leave()
  }
}

class ComparePage {
  constructor(root, app) {
    Object.assign(this, { app, jobs: [], found: null, asked: 0, windows: new Map() })
    const own = (name) => h("div", { class: name, "data-own": true })
    this.slots = {
      head: own("page-head"),
      picker: own("compare-slot"),
      stats: own("compare-stats"),
      columns: own("compare-panels"),
    }
    this.left = own("column")
    this.right = own("column")
    this.pair = own("pair")
    this.cards = {
      steps: new ChartCard({
        key: "steps",
        title: "Step time",
        explanation: "of both, from the first step of each",
        legend: stepLegend,
      }),
      optypes: new ChartCard({
        key: "optypes",
        title: "By operation",
        explanation: "longer than ideal by",
        legend: barLegend,
      }),
      stages: new ChartCard({
        key: "stages",
        title: "By stage",
        explanation: "longer than ideal by",
        legend: barLegend,
      }),
    }
    this.app.setSubject({ kind: "fleet" })
    patch(root, Object.values(this.slots))
  }

  async begin() {
    this.sides = readAddress("a", "b")
    this.drawHead()
    await Promise.allSettled([this.offer(""), ...["a", "b"].map((letter) => this.loadWindows(letter)), this.compare()])
    if (!this.hasLeft) this.drawPicker()
  }

  leave() {
    this.hasLeft = true
    this.asked += 1
    clearTimeout(this.timer)
    for (const card of Object.values(this.cards)) card.remove()
  }

  /** Closed windows do not change; only "recent" is requested again. */
  hear(changed) {
    const mine = ["a", "b"].map((letter) => this.side(letter))
    const isMine = mine.some(({ job, window }) => window === "recent" && (!changed || changed.has(job)))
    if (isMine) this.compare()
  }

  side(letter) {
    const [job = "", window = "recent"] = (this.sides[letter] ?? "").split(":")
    return {
      job,
      window: window || "recent",
      windows: this.windows.get(job) ?? [],
      isKnown: this.windows.get(job) !== null,
    }
  }

  /** Windows of a side's job; null where there is no such job. */
  async loadWindows(letter) {
    const { job } = this.side(letter)
    if (!job) return
    const found = await getJsonOrNull(`/jobs/${encodeURIComponent(job)}/windows?limit=${NUM_WINDOWS}`)
    this.windows.set(job, found?.items ?? null)
  }

  /** Load jobs to suggest while the reader types. */
  async offer(text) {
    const query = new URLSearchParams({ limit: String(NUM_JOBS), ...(text && { q: text }) })
    const found = await getJson(`/fleet?${query}`)
    this.jobs = found.items
  }

  pick(letter, job, window) {
    this.sides[letter] = job ? `${job}:${window}` : null
    updateAddress({ a: this.sides.a, b: this.sides.b }, { isStep: true })
    this.begin()
  }

  swap() {
    this.sides = { a: this.sides.b, b: this.sides.a }
    updateAddress(this.sides, { isStep: true })
    this.begin()
  }

  async compare() {
    const { a, b } = this.sides
    if (!a || !b) return this.sayWhat(a || b)
    const asked = ++this.asked
    try {
      const found = await getJson(`/compare?${this.query()}`)
      if (asked !== this.asked) return
      this.found = found
      this.draw()
    } catch (error) {
      if (asked !== this.asked) return
      if (error.status === 401) return this.app.onRefused()
      this.fail(error)
    }
  }

  query() {
    const { a, b } = this.sides
    return new URLSearchParams({ a: named(a), b: named(b) })
  }

  draw() {
    const { found } = this
    document.title = `${contained(found.b.name)} against ${contained(found.a.name)} \u00b7 Paceline`
    this.drawHead()
    this.drawPicker()
    patch(this.slots.stats, compareStats(found))
    const hasStages = Math.max(found.a.shape.pp_size, found.b.shape.pp_size) > 1
    patch(this.pair, this.cards.optypes.node, hasStages && this.cards.stages.node)
    patch(this.left, this.cards.steps.node, this.pair)
    patch(this.right, causesCard(found), sidesCard(found))
    patch(this.slots.columns, this.left, this.right)
    this.drawCharts()
  }

  drawCharts() {
    const { a, b } = this.found
    const low = [a, b].some(({ verdict }) => verdict === "low")
    const missing = [
      ["A", a],
      ["B", b],
    ].find(([, side]) => side.not_measured)
    for (const name of CHARTS) {
      if (missing)
        this.cards[name].say({
          markName: "not-analysed",
          title: "Nothing to compare",
          text: `${missing[0]}: ${missing[1].not_measured}.`,
        })
      else if (low && name !== "steps")
        this.cards[name].say({
          markName: "low-fidelity",
          title: "Withheld: low fidelity",
          text: "The simulated steps are too far from the recorded ones to say where time is lost.",
        })
      else this.cards[name].load({ [name]: `/compare/charts/${name}?${this.query()}` })
    }
  }

  drawHead() {
    const words = this.found ?? { sentence: "What changed?", sub: "Two windows, runs or jobs side by side." }
    const copy = copyButton(() => this.lasting(), { class: "button is-primary" }, "Copy link")
    patch(
      this.slots.head,
      h(
        "div",
        { class: "crumbs", "data-key": "crumbs" },
        h("a", { href: "/" }, "Fleet"),
        h("span", {}, "/"),
        h("b", {}, "Compare"),
      ),
      h(
        "div",
        { class: "head", "data-key": "head" },
        headline(words),
        copy && this.found && h("div", { class: "acts" }, copy),
      ),
    )
  }

  /** The address with the windows' ids in place of "recent". */
  lasting() {
    const { a, b } = this.found
    const query = new URLSearchParams({ a: `${a.job_id}:${a.window}`, b: `${b.job_id}:${b.window}` })
    return `${location.origin}${location.pathname}?${query}`
  }

  drawPicker() {
    const type = (text) => {
      clearTimeout(this.timer)
      this.timer = setTimeout(
        () =>
          this.offer(text).then(
            () => this.hasLeft || this.drawPicker(),
            () => {},
          ),
        PAUSE_MS,
      )
    }
    patch(
      this.slots.picker,
      comparePicker({
        sides: ["a", "b"].map((letter) => this.side(letter)),
        jobs: this.jobs,
        onJob: (letter, job) => job !== this.side(letter).job && this.pick(letter, job, "recent"),
        onWindow: (letter, window) => this.pick(letter, this.side(letter).job, window),
        onType: type,
        onSwap: () => this.swap(),
      }),
    )
    fillIn(this.slots.picker)
  }

  /** Show what is still to be chosen. */
  sayWhat(hasOne) {
    this.found = null
    this.drawHead()
    this.drawPicker()
    patch(this.slots.stats)
    patch(
      this.slots.columns,
      h(
        "p",
        { class: "quiet" },
        hasOne ? "Choose the other side." : "Choose a job on each side: A the baseline, B what is compared with it.",
      ),
    )
  }

  fail(error) {
    this.found = null
    this.drawHead()
    this.drawPicker()
    patch(this.slots.stats)
    patch(
      this.slots.columns,
      panelFailed("These two cannot be compared", error, () => this.compare()),
    )
  }
}

const named = (side) => (side.includes(":") ? side : `${side}:recent`)

function stepLegend() {
  return legend(
    ["is-a", "A recorded"],
    ["is-recorded", "B recorded"],
    ["is-ideal", "B without stragglers"],
    ["is-area", "B time lost"],
  )
}

function barLegend() {
  return legend(["is-bar-a", "A"], ["is-bar-b", "B"])
}
