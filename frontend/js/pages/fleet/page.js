/** All jobs, those that lose most first, and the fleet over time. */

import { changeJobs } from "../../components/job-lifecycle.js"
import { panelFailed, staleNote } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { STATE_WORDS } from "../../components/state-icon.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { contained, counted } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"
import { onTheme } from "../../lib/theme.js"
import { Demo } from "./demo.js"
import { FleetFilters, picksBar, togglePick } from "./filters.js"
import { GettingStarted } from "./getting-started.js"
import { fleetKeys } from "./keyboard.js"
import { SavedViews, VIEW_PARAMETERS } from "./saved-views.js"
import { fleetStats } from "./stats.js"
import { fleetTable, ORDERS, waitingLines } from "./table.js"
import { FleetWaste } from "./waste-charts.js"

const PAGE = 100
const MOST_A_CALL = 200

// Most first answers are sooner: before, nothing shows.
const PATIENCE_MS = 400

/** Draw the fleet into `root`; returns a function that leaves the page. */
export function render(root, _params, app) {
  const fleet = new Fleet(root, app)
  fleet.refresh()
  return () => fleet.leave()
}

class Fleet {
  constructor(root, app) {
    Object.assign(this, { root, app, answer: null, error: null, most: PAGE, picking: null, order: [] })
    this.demo = new Demo(() => this.draw())
    this.start = new GettingStarted(this.demo, () => this.draw())
    this.views = new SavedViews({ asked: inAddress, onopen: (query) => this.open(query) })
    this.filters = new FleetFilters({
      onask: (changes) => this.ask(changes),
      onpicking: () => this.pickFrom(this.picking ? null : new Set()),
      views: this.views.node,
    })
    this.waste = new FleetWaste()
    this.lines = h("div")
    // Built only once: removing it from the document would lose the focus while typing.
    this.table = h(
      "section",
      { class: "card fleet", "aria-label": "Jobs", "data-own": true },
      this.filters.node,
      this.lines,
    )
    this.patience = setTimeout(() => this.draw(), PATIENCE_MS)
    this.stops = [
      onChange(() => this.refresh()),
      onTheme(() => this.waste.load()),
      fleetKeys({
        search: this.filters.search,
        rows: () => [...root.querySelectorAll("a.row")],
        onclear: () => this.clear(),
        onpick: (row) => this.pick(row.closest(".fleet-line").dataset.key),
      }),
    ]
  }

  leave() {
    this.hasLeft = true
    clearTimeout(this.patience)
    for (const stop of this.stops) stop()
    this.waste.remove()
  }

  /** Load the jobs; the answer to an older request is dropped. */
  async refresh() {
    const wanted = Symbol("refresh")
    this.wanted = wanted
    const answer = await fetchJobs(asked(), this.most).catch((error) => error)
    if (this.wanted !== wanted || this.hasLeft) return
    if (answer instanceof Error) return this.fail(answer)
    const sentence = stateChanges(statesOf(this.answer?.items ?? []), answer.items)
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
    updateAddress({ ...filters, order: order === "lost" ? null : order, dir: isUsual ? null : dir })
    this.askAnew()
  }

  /** Show the filters and the order of a saved view. */
  open(query) {
    this.filters.clear()
    updateAddress({ ...Object.fromEntries(VIEW_PARAMETERS.map((name) => [name, null])), ...query })
    this.askAnew()
  }

  askAnew() {
    Object.assign(this, { most: PAGE, order: [] })
    if (this.picking) this.picking = new Set()
    this.draw()
    this.refresh()
  }

  showMore() {
    this.most += PAGE
    this.refresh()
  }

  /** Choosing the same column again reverses the order. */
  sortBy(order) {
    const now = asked()
    const turned = now.dir === "asc" ? "desc" : "asc"
    this.ask({ order, dir: now.order === order ? turned : ORDERS[order].dir })
  }

  /** Clear every filter; false where none was set. */
  clear() {
    const { q, state, lifecycle, cause } = asked()
    const isAny = Boolean(q || state || lifecycle || cause || this.picking || this.filters.search.value)
    this.picking = null
    this.filters.clear()
    if (isAny) this.ask({ q: null, state: null, lifecycle: null, cause: null })
    return isAny
  }

  pick(jobId) {
    this.pickFrom(togglePick(this.picking ?? new Set(), jobId))
  }

  pickFrom(picking) {
    this.picking = picking
    this.draw()
  }

  /** Archive, delete or restore the selected jobs. */
  async changePicked(name, jobs) {
    this.pickFrom(null)
    await changeJobs(name, jobs, () => this.refresh())
  }

  draw() {
    if (this.hasLeft) return
    clearTimeout(this.patience)
    patch(this.root, this.content())
  }

  content() {
    if (!this.answer)
      return this.error
        ? panelFailed("Could not load the jobs", this.error, () => this.refresh())
        : h("section", { class: "card fleet" }, waitingLines())
    const { jobs, archived, deleted } = this.answer.summary
    if (!jobs && !archived && !deleted) return this.start.content()
    const { summary } = this.answer
    this.drawJobs(summary)
    return [
      top(summary),
      h("div", {}, this.error && staleNote(this.error, () => this.refresh())),
      fleetStats(summary, money, this.error !== null),
      this.table,
      this.demo.line(),
      this.waste.node,
    ]
  }

  /** After "back", focus the line that the reader had opened; once. */
  focusOpened() {
    const jobId = history.state?.opened
    if (jobId === undefined) return
    history.replaceState(null, "")
    this.lines.querySelector(`[data-key="${CSS.escape(jobId)}"] a.row`)?.focus()
  }

  drawJobs(summary) {
    this.filters.update(asked(), summary, this.picking)
    this.views.draw()
    this.table.classList.toggle("is-old", this.error !== null)
    const { items, total } = this.answer
    patch(
      this.lines,
      this.picking &&
        picksBar({
          picks: this.picking,
          jobs: items,
          onall: () => this.pickFrom(new Set(items.map((job) => job.job_id))),
          onchange: (name, jobs) => this.changePicked(name, jobs),
          onend: () => this.pickFrom(null),
        }),
      fleetTable({
        jobs: this.held(items),
        total,
        asked: asked(),
        picking: this.picking,
        money,
        onorder: (order) => this.sortBy(order),
        onpick: (jobId) => this.pick(jobId),
        onmore: () => this.showMore(),
        onclear: () => this.clear(),
      }),
    )
  }

  /** The jobs in their order, which does not change while the reader points at them. */
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

/** Filters and order in the address; by default the order is by current loss. */
function asked() {
  const { order, dir, ...filters } = readAddress(...VIEW_PARAMETERS)
  const by = Object.hasOwn(ORDERS, order ?? "") ? order : "lost"
  return { ...filters, order: by, dir: dir === "asc" || dir === "desc" ? dir : ORDERS[by].dir }
}

/** The filters and the order that the address has. */
function inAddress() {
  return Object.fromEntries(Object.entries(readAddress(...VIEW_PARAMETERS)).filter(([, value]) => value))
}

/** The first `most` jobs, in as few requests as the server allows. */
async function fetchJobs(asked, most) {
  const filters = Object.entries(asked).filter(([, value]) => value)
  let answer = { items: [], next_cursor: null }
  do {
    const limit = Math.min(MOST_A_CALL, most - answer.items.length)
    const query = new URLSearchParams([
      ...filters,
      ["limit", limit],
      ...(answer.next_cursor ? [["cursor", answer.next_cursor]] : []),
    ])
    const next = await getJson(`/fleet?${query}`)
    answer = { ...next, items: [...answer.items, ...next.items] }
  } while (answer.next_cursor && answer.items.length < most)
  return answer
}

function top({ sentence, sub, alerts_firing }) {
  return h(
    "div",
    { class: "fleet-top" },
    headline({ sentence, sub }),
    alerts_firing > 0 && h("a", { class: "button", href: "/alerts" }, `${counted(alerts_firing, "alert")} firing`),
  )
}

const NAMED = 2

/** Changes of jobs' states in a sentence, empty where there are none; `before` maps job ids to states. */
export function stateChanges(before, jobs) {
  const changed = jobs.filter((job) => before.has(job.job_id) && before.get(job.job_id) !== job.state)
  const sentences = changed
    .slice(0, NAMED)
    .map((job) => `${contained(job.name)} is now ${(STATE_WORDS[job.state] ?? job.state).toLowerCase()}.`)
  const more = changed.length - sentences.length
  return [...sentences, more > 0 && `${counted(more, "more job")} changed.`].filter(Boolean).join(" ")
}

/** The states by job id, to compare the next answer with. */
export const statesOf = (jobs) => new Map(jobs.map((job) => [job.job_id, job.state]))
