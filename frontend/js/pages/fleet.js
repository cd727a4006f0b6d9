/** All jobs, the one that loses most first, and the fleet over time. */

import { getJson } from "../api.js"
import { FleetFilters } from "../components/fleet-filters.js"
import { fleetKeys } from "../components/fleet-keys.js"
import { news, statesOf } from "../components/fleet-news.js"
import { picked, picksBar } from "../components/fleet-picks.js"
import { fleetStats } from "../components/fleet-stats.js"
import { ORDERS, fleetTable, waitingLines } from "../components/fleet-table.js"
import { FleetWaste } from "../components/fleet-waste.js"
import { headline } from "../components/headline.js"
import { noteBar } from "../components/note-bar.js"
import { panelFailed } from "../components/panel-failed.js"
import { announce, h, patch } from "../dom.js"
import { onChange } from "../live.js"
import { money } from "../price.js"
import { choose, chosen } from "../selection.js"
import { onTheme } from "../theme.js"
import { clock, counted } from "../words.js"
import { firstStart } from "./first-start.js"

export const path = /^\/$/
export const title = "Fleet"

const PAGE = 100
const MOST_A_CALL = 200

// Most first answers are sooner: before, nothing shows.
const PATIENCE_MS = 400

/** Draw the fleet into `root`; gives back how to leave. */
export function render(root, _params, app) {
  const fleet = new Fleet(root, app)
  fleet.refresh()
  return () => fleet.leave()
}

class Fleet {
  constructor(root, app) {
    Object.assign(this, { root, app, answer: null, error: null, most: PAGE, picking: null, order: [], way: undefined })
    this.filters = new FleetFilters({ onask: (changes) => this.ask(changes), onpicking: () => this.pickFrom(this.picking ? null : new Set()) })
    this.waste = new FleetWaste()
    this.lines = h("div")
    // Never built anew: taking it out of the page, if only for a moment, would end what is typed.
    this.table = h("section", { class: "card fleet", "aria-label": "Jobs", "data-own": true }, this.filters.node, this.lines)
    this.patience = setTimeout(() => this.draw(), PATIENCE_MS)
    this.stops = [
      onChange(() => this.refresh()),
      onTheme(() => this.waste.load()),
      fleetKeys({ search: this.filters.search, rows: () => [...root.querySelectorAll("a.row")], onclear: () => this.clear(), onpick: (row) => this.pick(row.closest(".fleet-line").dataset.key) }),
    ]
  }

  leave() {
    this.hasLeft = true
    clearTimeout(this.patience)
    for (const stop of this.stops) stop()
    this.waste.remove()
  }

  /** Fetch what the reader asked for; the answer to an older question is dropped. */
  async refresh() {
    const wanted = (this.wanted = Symbol("refresh"))
    const answer = await fetchJobs(asked(), this.most).catch((error) => error)
    if (this.wanted !== wanted || this.hasLeft) return
    if (answer instanceof Error) return this.fail(answer)
    const sentence = news(statesOf(this.answer?.items ?? []), answer.items)
    if (sentence) announce(sentence)
    Object.assign(this, { answer, error: null })
    this.app.setSubject({ kind: answer.summary.jobs ? "fleet" : "empty" })
    this.draw()
    this.focusOpened()
    if (answer.summary.jobs) this.waste.load({ isSoon: true })
  }

  fail(error) {
    if (error.status === 401) return this.app.onRefused()
    this.error = error
    this.draw()
  }

  ask(changes) {
    const { order, dir, ...filters } = { ...asked(), ...changes }
    const isUsual = dir === ORDERS[order].dir
    choose({ ...filters, order: order === "lost" ? null : order, dir: isUsual ? null : dir })
    Object.assign(this, { most: PAGE, order: [] })
    this.draw()
    this.refresh()
  }

  /** A second time by the same column turns the order round. */
  sortBy(order) {
    const now = asked()
    const turned = now.dir === "asc" ? "desc" : "asc"
    this.ask({ order, dir: now.order === order ? turned : ORDERS[order].dir })
  }

  /** Take every filter out; false where there was none. */
  clear() {
    const { q, state, cause } = asked()
    const isAny = Boolean(q || state || cause || this.picking || this.filters.search.value)
    this.picking = null
    this.filters.clear()
    if (isAny) this.ask({ q: null, state: null, cause: null })
    return isAny
  }

  pick(jobId) {
    this.pickFrom(picked(this.picking ?? new Set(), jobId))
  }

  pickFrom(picking) {
    this.picking = picking
    this.draw()
  }

  draw() {
    if (this.hasLeft) return
    clearTimeout(this.patience)
    patch(this.root, this.content())
  }

  content() {
    if (!this.answer) return this.error ? panelFailed("Could not load the jobs", this.error, () => this.refresh()) : h("section", { class: "card fleet" }, waitingLines())
    if (!this.answer.summary.jobs) return firstStart({ way: this.way, onWay: (way) => ((this.way = way), this.draw()) })
    const { summary } = this.answer
    this.drawJobs(summary)
    return [top(summary), h("div", {}, this.error && this.asOf()), fleetStats(summary, money, this.error !== null), this.table, this.waste.node]
  }

  asOf() {
    return noteBar({ fact: `Figures are as of ${clock(this.answer.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: () => this.refresh() } })
  }

  /** After "back", the line that the reader opened has the focus again; once. */
  focusOpened() {
    const jobId = history.state?.opened
    if (jobId === undefined) return
    history.replaceState(null, "")
    this.lines.querySelector(`[data-key="${CSS.escape(jobId)}"] a.row`)?.focus()
  }

  drawJobs(summary) {
    this.filters.update(asked(), summary, this.picking)
    this.table.classList.toggle("is-old", this.error !== null)
    const { items, total } = this.answer
    const nameOf = (jobId) => items.find((job) => job.job_id === jobId)?.name ?? jobId
    patch(
      this.lines,
      this.picking && picksBar(this.picking, nameOf, () => this.pickFrom(null)),
      fleetTable({
        jobs: this.held(items),
        total,
        asked: asked(),
        picking: this.picking,
        money,
        onorder: (order) => this.sortBy(order),
        onpick: (jobId) => this.pick(jobId),
        onmore: () => ((this.most += PAGE), this.refresh()),
        onclear: () => this.clear(),
      }),
    )
  }

  /** The jobs in their order, which stays while the reader is pointing at them. */
  held(items) {
    const lines = this.root.querySelector(".fleet [role=list]")
    const isHeld = lines?.matches(":hover") || lines?.contains(document.activeElement)
    const place = new Map(this.order.map((jobId, index) => [jobId, index]))
    const placeOf = ({ job_id }) => place.get(job_id) ?? Infinity
    const jobs = isHeld ? items.toSorted((a, b) => (placeOf(a) === placeOf(b) ? 0 : placeOf(a) - placeOf(b))) : items
    this.order = jobs.map((job) => job.job_id)
    return jobs
  }
}

/** What the address asks for; jobs by what they lose now where it says nothing. */
function asked() {
  const { order, dir, ...filters } = chosen("q", "state", "cause", "order", "dir")
  const by = Object.hasOwn(ORDERS, order ?? "") ? order : "lost"
  return { ...filters, order: by, dir: dir === "asc" || dir === "desc" ? dir : ORDERS[by].dir }
}

/** So many of the jobs, in as few calls as the server allows. */
async function fetchJobs(asked, most) {
  const filters = Object.entries(asked).filter(([, value]) => value)
  let answer = { items: [], next_cursor: null }
  do {
    const limit = Math.min(MOST_A_CALL, most - answer.items.length)
    const query = new URLSearchParams([...filters, ["limit", limit], ...(answer.next_cursor ? [["cursor", answer.next_cursor]] : [])])
    const next = await getJson(`/fleet?${query}`)
    answer = { ...next, items: [...answer.items, ...next.items] }
  } while (answer.next_cursor && answer.items.length < most)
  return { ...answer, at: new Date() }
}

function top({ sentence, sub, alerts_firing }) {
  return h(
    "div",
    { class: "fleet-top" },
    headline({ sentence, sub }),
    alerts_firing > 0 && h("a", { class: "button", href: "/alerts" }, `${counted(alerts_firing, "alert")} firing`),
  )
}
