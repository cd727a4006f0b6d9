/** The bar over the jobs: search, states with their counts, cause, order, saved views; and the selected jobs. */

import { CHANGES, changesOf } from "../../components/job-lifecycle.js"
import { stateIcon } from "../../components/state-icon.js"
import { h, patch } from "../../lib/dom.js"
import { contained, counted, whole } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { causeChoices, ORDERS } from "./table.js"

// A search starts once the reader has stopped typing for so long.
const PAUSE_MS = 150

// Rare states are shown only while a job has them.
const SEGMENTS = [
  { value: "straggling", text: "Straggling" },
  { value: "crashed", text: "Crashed", isSeldom: true },
  { value: "stalled", text: "Stalled", isSeldom: true },
  { value: "silent", text: "Silent", isSeldom: true },
  { value: "healthy", text: "Healthy" },
  { value: "low-fidelity", text: "Low fidelity", isSeldom: true },
  { value: "not-analysed", text: "Not analysed", isSeldom: true },
  { value: "preempted", text: "Preempted", isSeldom: true },
  { value: "finished", text: "Finished", isSeldom: true },
  { value: "unknown", text: "Unknown", isSeldom: true },
]

// Jobs that are in no other list; shown only while there are any.
const HIDDEN = [
  { value: "archived", text: "Archived" },
  { value: "deleted", text: "Deleted" },
]

const MAGNIFIER = "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4 14 14"

/** The bar; it keeps its own fields, so that what is being typed is never overwritten. */
export class FleetFilters {
  /** `onask(changes)` gets what the reader chose, `onpicking()` when selecting begins or ends; `views` is a node. */
  constructor({ onask, onpicking, views }) {
    this.onask = onask
    this.onpicking = onpicking
    this.search = h("input", {
      class: "field",
      type: "search",
      name: "q",
      "aria-label": "Search jobs",
      placeholder: "Search",
      title: "Jobs, hosts, owners and causes",
      autocomplete: "off",
      spellcheck: "false",
    })
    this.search.addEventListener("input", () => this.typed())
    this.segments = h("div", { class: "segments", role: "group", "aria-label": "State" })
    this.cause = h("select", {
      class: "field",
      "aria-label": "Cause",
      onchange: () => onask({ cause: this.cause.value }),
    })
    this.order = h(
      "select",
      { class: "field", "aria-label": "Order", onchange: () => onask({ order: this.order.value, dir: null }) },
      orderChoices(),
    )
    this.way = h("span", { class: "way" })
    this.select = h("span")
    this.node = h(
      "div",
      { class: "fleet-filters", "data-own": true },
      h("label", { class: "search" }, magnifier(), this.search, h("kbd", { "aria-hidden": "true" }, "/")),
      this.segments,
      this.cause,
      h("div", { class: "right" }, this.select, views, this.order, this.way),
    )
  }

  /** Show what is chosen and how many there are of each; `summary` may be null at first. */
  update(asked, summary, picking) {
    if (document.activeElement !== this.search) this.search.value = asked.q ?? ""
    if (summary)
      patch(
        this.segments,
        segment({ value: "", text: "All" }, asked, summary.jobs, this.onask),
        this.counted(asked, summary.by_state),
        HIDDEN.filter(({ value }) => summary[value] || asked.lifecycle === value).map((each) =>
          hiddenSegment(each, asked, summary[each.value], this.onask),
        ),
      )
    this.drawCauses(asked.cause, summary?.by_cause ?? {})
    this.order.value = asked.order
    patch(this.way, this.direction(asked))
    patch(
      this.select,
      h(
        "button",
        { class: "button", type: "button", "aria-pressed": String(picking !== null), onclick: this.onpicking },
        "Select",
      ),
    )
  }

  typed() {
    clearTimeout(this.pause)
    this.pause = setTimeout(() => this.onask({ q: this.search.value.trim() }), PAUSE_MS)
  }

  /** Empty the search field, also while it has the focus. */
  clear() {
    clearTimeout(this.pause)
    this.search.value = ""
  }

  counted(asked, byState) {
    return SEGMENTS.map((each) => {
      const number = byState[each.value] ?? 0
      const isLeftOut = each.isSeldom && !number && asked.state !== each.value
      return isLeftOut ? null : segment(each, asked, number, this.onask)
    })
  }

  drawCauses(chosen, byCause) {
    const known = chosen && !(chosen in byCause) ? { ...byCause, [chosen]: 0 } : byCause
    patch(
      this.cause,
      h("option", { value: "" }, "Cause: any"),
      causeChoices(known).map(([cause, text]) => h("option", { value: cause }, text)),
    )
    this.cause.value = chosen ?? ""
  }

  direction({ dir }) {
    const isUp = dir === "asc"
    const label = isUp ? "Smallest first. Reverse order." : "Largest first. Reverse order."
    return h(
      "button",
      {
        class: "icon-button",
        type: "button",
        "aria-label": label,
        title: label,
        onclick: () => this.onask({ dir: isUp ? "desc" : "asc" }),
      },
      isUp ? "\u2191" : "\u2193",
    )
  }
}

function segment({ value, text }, asked, number, onask) {
  return h(
    "button",
    {
      type: "button",
      "data-key": value || "all",
      "aria-pressed": String(!asked.lifecycle && (asked.state ?? "") === value),
      onclick: () => onask({ state: value, lifecycle: null }),
    },
    value && stateIcon(value),
    `${text} ${whole(number)}`,
  )
}

function hiddenSegment({ value, text }, asked, number, onask) {
  return h(
    "button",
    {
      type: "button",
      "data-key": value,
      "aria-pressed": String(asked.lifecycle === value),
      onclick: () => onask({ state: null, cause: null, lifecycle: value }),
    },
    `${text} ${whole(number)}`,
  )
}

function orderChoices() {
  return Object.entries(ORDERS).map(([value, { text }]) => h("option", { value }, `Order: ${text}`))
}

function magnifier() {
  return h(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    h("path", { d: MAGNIFIER, fill: "none", stroke: "currentColor", "stroke-width": 1.3, "stroke-linecap": "round" }),
  )
}

const COMPARED = 2

/** Add or remove a selected job. */
export function togglePick(picks, jobId) {
  if (picks.has(jobId)) return new Set([...picks].filter((each) => each !== jobId))
  return new Set([...picks, jobId])
}

/** The bar while jobs are selected; `jobs` are those shown, `onchange(name, jobs)` changes the selected ones. */
export function picksBar({ picks, jobs, onall, onchange, onend }) {
  const picked = jobs.filter((job) => picks.has(job.job_id))
  const names = picked.map((job) => contained(job.name))
  const fit = picked.length ? changesOf(picked[0]) : []
  return h(
    "div",
    { class: "picks", "data-key": "picks" },
    h("span", { class: "names" }, pickedWords(names)),
    picked.length < jobs.length &&
      h("button", { class: "text-button", type: "button", onclick: onall }, `Select all ${whole(jobs.length)} shown`),
    fit
      .filter((name) => may(CHANGES[name].scope))
      .map((name) =>
        h("button", { class: "button", type: "button", onclick: () => onchange(name, picked) }, CHANGES[name].text),
      ),
    picked.length === COMPARED && h("a", { class: "button", href: address([...picks]) }, "Compare these two"),
    h("button", { class: "button", type: "button", onclick: onend }, "Cancel"),
  )
}

function pickedWords(names) {
  if (!names.length) return "Select jobs to archive or delete them; two to compare them."
  return names.length <= COMPARED ? names.join(" and ") : `${counted(names.length, "job")} selected`
}

function address([a, b]) {
  return `/compare?${new URLSearchParams({ a: `${a}:recent`, b: `${b}:recent` })}`
}
