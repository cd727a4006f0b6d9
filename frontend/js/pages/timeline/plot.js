/** The timeline's chart: zoomed by dragging, walked with the arrow keys; and where each bar is. */

import { chartTable } from "../../components/chart-card.js"
import { panelFailed } from "../../components/notices.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { isPlotlyReady, plotlyReady } from "../../lib/plotly.js"
import { theme } from "../../lib/theme.js"

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
    this.frame = h(
      "div",
      { class: "timeline-frame", role: "group", tabindex: "0", "aria-label": "Timeline", "data-own": true },
      this.plot,
    )
    this.header = h("header")
    this.body = h("div", {}, this.frame)
    this.node = h(
      "section",
      { class: "card timeline", "data-own": true, "aria-label": "Recorded and ideal" },
      this.header,
      this.body,
    )
    this.frame.onkeydown = (event) => this.key(event)
    this.observer = new ResizeObserver(() => this.resized())
    this.observer.observe(this.node)
    this.drawHeader()
  }

  /** Fetch and draw; the old picture stays until the new one is here. */
  async load(path, { isZoomed }) {
    this.path = path
    this.isZoomed = isZoomed
    const wanted = Symbol("load")
    this.wanted = wanted
    try {
      const figure = await getJson(`${path}&width=${this.plotWidth()}&theme=${theme()}`)
      await plotlyReady()
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
    if (isPlotlyReady()) Plotly.purge(this.plot)
  }

  show(figure) {
    this.figure = figure
    this.bars = barsOf(figure)
    this.draw()
  }

  draw() {
    this.drawHeader()
    const { data, layout, meta } = this.figure
    if (this.isTable) return patch(this.body, chartTable(meta))
    patch(this.body, this.frame)
    this.width_px = this.widthNow()
    this.plot.setAttribute("aria-label", meta.text)
    this.frame.setAttribute(
      "aria-label",
      "Timeline. Arrow keys choose an operation, plus and minus zoom, Escape goes back.",
    )
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
    patch(
      this.body,
      panelFailed("Could not load the timeline.", error, () => this.load(this.path, this)),
    )
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
      h(
        "button",
        { class: `text-button whole-step${this.isZoomed ? "" : " is-away"}`, type: "button", onclick: whole },
        "Whole step",
      ),
      h(
        "div",
        { class: "key" },
        h(
          "span",
          { class: "legend lanes" },
          LEGEND.map((name) => h("span", {}, h("i", { class: `is-${name.replace(" ", "-")}` }), name)),
        ),
      ),
      h(
        "button",
        {
          class: "text-button toggle",
          type: "button",
          onclick: toggle,
          "aria-label": `Recorded and ideal: show as ${this.isTable ? "chart" : "table"}`,
        },
        this.isTable ? "Show chart" : "Show table",
      ),
    )
  }
}

/** Every bar that stands for an operation: `{run, stage, optype, seqId, start, end, y, height}`. */
function barsOf(figure) {
  return figure.data.filter((trace) => trace.type === "bar" && trace.customdata).flatMap(barsOfTrace)
}

/** The bar of an operation; undefined where it is not drawn, or is one with others. */
function findBar(bars, { run, stage, optype, seqId }) {
  return bars.find((bar) => bar.run === run && bar.stage === stage && bar.optype === optype && bar.seqId === seqId)
}

/** The bar that an arrow key leads to; the same one at the edge. */
function beside(bars, bar, key) {
  const single = bars.filter((other) => other.optype)
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const lane = single.filter((other) => other.y === bar.y).sort((a, b) => a.start - b.start)
    const at = lane.findIndex((other) => other.start === bar.start)
    return lane[at + (key === "ArrowRight" ? 1 : -1)] ?? bar
  }
  const lanes = [...new Set(single.map((other) => other.y))].sort((a, b) => a - b)
  const y = lanes[lanes.indexOf(bar.y) + (key === "ArrowDown" ? 1 : -1)]
  const middle = (bar.start + bar.end) / 2
  const off = (other) => Math.max(other.start - middle, middle - other.end, 0)
  return single.filter((other) => other.y === y).sort((a, b) => off(a) - off(b))[0] ?? bar
}

/** The line trace that marks a bar. */
function markOf({ start, end, y, height }) {
  const half = height / 2 + 1
  return {
    type: "scatter",
    mode: "lines",
    name: "selected",
    x: [start, end, end, start, start],
    y: [y - half, y - half, y + half, y + half, y - half],
    fill: "none",
    hoverinfo: "skip",
    line: { color: getComputedStyle(document.documentElement).getPropertyValue("--accent").trim(), width: 3 },
  }
}

function barsOfTrace({ base, x, y, width, customdata }) {
  const [starts, lengths, middles] = [base, x, y].map(unpacked)
  return customdata.map(([, run, stage, optype, seqId], at) => ({
    run,
    stage,
    optype,
    seqId,
    start: starts[at],
    end: starts[at] + lengths[at],
    y: middles[at],
    height: width,
  }))
}

/** Plotly's packed numbers, or a plain list as it is. */
function unpacked(array) {
  if (Array.isArray(array)) return array
  const bytes = Uint8Array.from(atob(array.bdata), (character) => character.charCodeAt(0))
  return new Float64Array(bytes.buffer)
}
