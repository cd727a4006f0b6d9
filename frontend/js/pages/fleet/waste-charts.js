/** The fleet over time, under its jobs: waste, its causes and hosts, and what fixes have achieved. */

import { ChartCard } from "../../components/chart-card.js"
import { FleetFixes } from "../../components/fix-history.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { contained, counted, ratio } from "../../lib/formatting.js"

const CHARTS = {
  waste: { title: "How much jobs waste" },
  causes: { title: "Loss by cause", more: ", may overlap" },
  optypes: { title: "Loss by operation" },
  sizes: { title: "Slowdown by job size" },
  planned: { title: "GPU-hours, planned and real" },
}
const SHOWN_HOSTS = 5

// These figures cover weeks: one window more does not change the charts visibly.
const MIN_INTERVAL_MS = 30_000

/** The cards; they fetch for themselves. */
export class FleetWaste {
  constructor() {
    this.cards = Object.fromEntries(
      Object.entries(CHARTS).map(([key, { title, more = "" }]) => [
        key,
        new ChartCard({ key, title, explanation: `last 30 days${more}` }),
      ]),
    )
    for (const [key, card] of Object.entries(this.cards)) card.node.classList.add(`is-${key}`)
    this.hosts = h("section", { class: "card fleet-hosts is-hosts", "aria-label": "Hosts slow in several jobs" })
    this.fixes = new FleetFixes()
    const { waste, causes, optypes, sizes, planned } = this.cards
    this.node = h("div", { class: "fleet-waste", "data-own": true }, [
      waste.node,
      causes.node,
      this.hosts,
      optypes.node,
      sizes.node,
      planned.node,
      this.fixes.node,
    ])
    this.loadedMs = -Infinity
  }

  /** Fetch all of them; with `isSoon` only where the last time is long enough ago. */
  async load({ isSoon = false } = {}) {
    if (isSoon && performance.now() - this.loadedMs < MIN_INTERVAL_MS) return
    this.loadedMs = performance.now()
    const charts = Object.entries(this.cards).map(([key, card]) => card.load({ [key]: `/fleet/charts/${key}` }))
    await Promise.all([...charts, this.loadHosts(), this.fixes.load()])
  }

  async loadHosts() {
    const answer = await getJson(`/hosts?min_jobs=2&limit=${SHOWN_HOSTS}`).catch((error) => error)
    if (answer instanceof Error && this.hosts.childElementCount) return
    patch(
      this.hosts,
      h("header", {}, h("h2", {}, "Hosts slow in several jobs")),
      answer instanceof Error ? couldNot(() => this.loadHosts()) : list(answer),
    )
  }

  /** Stop watching the page. */
  remove() {
    for (const card of Object.values(this.cards)) card.remove()
  }
}

function list({ items, next_cursor }) {
  if (!items.length) return h("p", { class: "quiet" }, "None: no host was slower than its peers in two jobs or more.")
  return [
    h("ul", {}, items.map(line)),
    h("p", { class: "remark" }, "A host is listed when two jobs or more found it slower than its peers."),
    next_cursor && h("a", { href: "/hosts" }, "All hosts"),
  ]
}

function line({ host, jobs, worst_slowdown }) {
  return h(
    "li",
    { "data-key": host },
    h("a", { href: `/hosts/${encodeURIComponent(host)}` }, contained(host)),
    h(
      "span",
      { class: "number" },
      [counted(jobs, "job"), worst_slowdown !== null && `up to ${ratio(worst_slowdown)}`].filter(Boolean).join(", "),
    ),
  )
}

function couldNot(onclick) {
  return h(
    "div",
    { class: "panel-state" },
    h("b", {}, "Could not load this panel"),
    h("button", { class: "text-button", type: "button", onclick }, "Try again"),
  )
}
