/** The card of a timeline: its picture in a frame of its own, zoomed by dragging, walked with arrow keys. */

import { getJson } from "../api.js"
import { h, patch } from "../dom.js"
import { theme } from "../theme.js"
import { table } from "./chart-card.js"
import { panelFailed } from "./panel-failed.js"
import { barsOf, beside, findBar, markOf } from "./timeline-bars.js"

const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false }
const MIN_WIDTH_PX = 880
const ARROWS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"])
const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2 }
const LEGEND = ["forward", "backward", "transfer", "optimizer", "waiting", "critical path"]

/** Draws what the server sends for a path; tells which stretch and which operation the reader wants. */
export class TimelinePlot {
  /** `onZoom({from, to})` has nulls for the whole step; `onPick(bar)` has null for none. */
  constructor({ onZoom, onPick }) {
    this.onZoom = onZoom
    this.onPick = onPick
    this.figure = null
    this.picked = null
    this.isTable = false
    this.plot = h("div", { class: "plot", role: "img", "data-own": true })
    this.frame = h("div", { class: "timeline-frame", role: "group", tabindex: "0", "aria-label": "Timeline", "data-own": true }, this.plot)
    this.header = h("header")
    this.body = h("div", {}, this.frame)
    this.node = h("section", { class: "card timeline", "data-own": true, "aria-label": "Recorded and ideal" }, this.header, this.body)
    this.frame.onkeydown = (event) => this.key(event)
    this.observer = new ResizeObserver(() => this.resized())
    this.observer.observe(this.node)
    this.drawHeader()
  }

  /** Fetch and draw; the old picture stays until the new one is here. */
  async load(path, { isZoomed }) {
    this.path = path
    this.isZoomed = isZoomed
    const wanted = (this.wanted = Symbol("load"))
    try {
      const figure = await getJson(`${path}&width=${this.plotWidth()}&theme=${theme()}`)
      if (this.wanted === wanted) this.show(figure)
    } catch (error) {
      if (this.wanted === wanted && !(this.figure && !error.status)) this.fail(error)
    }
  }

  /** Mark an operation `{run, stage, optype, seqId}`, or none. */
  pick(operation) {
    this.picked = operation
    if (this.figure && !this.isTable) this.draw()
  }

  /** Stop watching the page. */
  remove() {
    this.wanted = null
    this.observer.disconnect()
    Plotly.purge(this.plot)
  }

  show(figure) {
    this.figure = figure
    this.bars = barsOf(figure)
    this.draw()
  }

  draw() {
    this.drawHeader()
    const { data, layout, meta } = this.figure
    if (this.isTable) return patch(this.body, table(meta))
    patch(this.body, this.frame)
    this.width_px = this.widthNow()
    this.plot.setAttribute("aria-label", meta.text)
    this.frame.setAttribute("aria-label", "Timeline. Arrow keys choose an operation, plus and minus zoom, Escape goes back.")
    const bar = this.picked && findBar(this.bars, this.picked)
    const isNew = !this.plot.data
    Plotly.react(this.plot, bar ? [...data, markOf(bar)] : data, { ...layout, width: this.width_px }, CONFIG)
    if (isNew) this.listen()
  }

  listen() {
    this.plot.on("plotly_click", ({ points }) => this.clicked(points[0]))
    this.plot.on("plotly_doubleclick", () => this.onZoom({ from: null, to: null }))
    this.plot.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this.zoom(change["xaxis.range[0]"], change["xaxis.range[1]"])
    })
  }

  clicked({ customdata, base, x }) {
    if (!customdata) return
    const [, run, stage, optype, seqId] = customdata
    if (optype) return this.onPick({ run, stage, optype, seqId })
    // Several operations in one bar: nearer, they come apart.
    this.zoom(base - x, base + 2 * x)
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.figure || this.isTable) return
    if (ARROWS.has(event.key)) this.walk(event)
    else if (event.key in ZOOMS) this.zoomBy(ZOOMS[event.key])
    else if (event.key === "Escape") this.back()
    else return
    event.preventDefault()
  }

  walk(event) {
    const now = this.picked && findBar(this.bars, this.picked)
    const next = now ? beside(this.bars, now, event.key) : this.bars.find((bar) => bar.optype)
    if (!next) return
    this.onPick(next)
    this.bringIntoView(next)
  }

  bringIntoView({ start, end }) {
    const [from, to] = this.figure.layout.xaxis.range
    const share = ((start + end) / 2 - from) / (to - from)
    const at = this.figure.layout.margin.l + share * this.plotWidth()
    const { scrollLeft, clientWidth } = this.frame
    if (at < scrollLeft + 80 || at > scrollLeft + clientWidth - 80) this.frame.scrollLeft = at - clientWidth / 2
  }

  back() {
    if (this.picked) this.onPick(null)
    else this.onZoom({ from: null, to: null })
  }

  zoomBy(factor) {
    const [from, to] = this.figure.layout.xaxis.range
    const bar = this.picked && findBar(this.bars, this.picked)
    const middle = bar ? (bar.start + bar.end) / 2 : (from + to) / 2
    const half = ((to - from) * factor) / 2
    this.zoom(middle - half, middle + half)
  }

  zoom(from, to) {
    this.onZoom({ from: Math.max(0, from).toPrecision(7), to: to.toPrecision(7) })
  }

  fail(error) {
    this.figure = null
    this.drawHeader()
    patch(this.body, panelFailed("Could not load the timeline.", error, () => this.load(this.path, this)))
  }

  widthNow() {
    return Math.max(MIN_WIDTH_PX, this.body.clientWidth)
  }

  /** Without the labels at its left and the margin at its right. */
  plotWidth() {
    return Math.max(100, this.widthNow() - (this.figure?.layout.margin.l ?? 60) - 8)
  }

  resized() {
    if (this.figure && !this.isTable && this.widthNow() !== this.width_px) this.load(this.path, this)
  }

  drawHeader() {
    const toggle = () => {
      this.isTable = !this.isTable
      this.draw()
    }
    const whole = () => this.onZoom({ from: null, to: null })
    patch(
      this.header,
      h("h2", {}, "Recorded and ideal"),
      h("span", { class: "explanation" }, "number in a bar: micro-batch"),
      h("button", { class: `text-button whole-step${this.isZoomed ? "" : " is-away"}`, type: "button", onclick: whole }, "Whole step"),
      h("div", { class: "key" }, h("span", { class: "legend lanes" }, LEGEND.map((name) => h("span", {}, h("i", { class: `is-${name.replace(" ", "-")}` }), name)))),
      h("button", { class: "text-button toggle", type: "button", onclick: toggle, "aria-label": `Recorded and ideal: show as ${this.isTable ? "chart" : "table"}` }, this.isTable ? "Show chart" : "Show table"),
    )
  }
}
