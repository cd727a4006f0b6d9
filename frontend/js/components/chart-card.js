/** A card with one chart from the server: its picture, its table, and what shows instead of them. */

import { getJson } from "../lib/api.js"
import { h, patch } from "../lib/dom.js"
import { clock, contained, tidy } from "../lib/formatting.js"
import { isPlotlyReady, plotlyReady } from "../lib/plotly.js"
import { theme } from "../lib/theme.js"
import { withLocalClock } from "./clock-axis.js"
import { PlotPointer } from "./plot-pointer.js"
import { stateIcon } from "./state-icon.js"

const NOTHING_YET = {
  markName: "not-analysed",
  title: "Not measured yet",
  text: "Needs a closed window with figures.",
}
const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false }

/** One chart of a card; a card may stack several over one axis. */
export class ChartCard {
  /**
   * `legend` is a function that makes the key of a figure (null before there is one); `waiting` one
   * that makes the first grey picture.
   *
   * `highlight` is what all charts of a page mark; `controls` makes buttons for the header.
   */
  constructor({
    key,
    title,
    explanation = "",
    legend = null,
    parts = [key],
    waiting = waitingBlock,
    highlight = null,
    controls = null,
  }) {
    this.title = title
    this.controls = controls
    this.explanation = explanation
    this.legend = legend
    this.isTable = false
    // A grid in which all values are the same is a sentence until the reader wants it, or until they differ.
    this.hasGrid = false
    this.parts = parts.map((name) => newPart(name, highlight))
    this.header = h("header")
    this.body = h("div")
    this.foot = h("div")
    this.node = h(
      "section",
      { class: "card", "data-own": true, "aria-label": title },
      this.header,
      this.body,
      this.foot,
    )
    this.waiting = waiting
    this.drawHeader()
    // Nothing shows before 400 ms: most first answers are sooner.
    this.patience = setTimeout(() => this.hasPicture() || patch(this.body, this.waiting()), 400)
    this.observer = new ResizeObserver(() => this.resize())
    this.observer.observe(this.node)
  }

  /**
   * Fetch and draw the parts that `paths` names; the old picture stays until the new one is here.
   *
   * A part that has nothing to show yet (404) is left out as long as another one has.
   */
  async load(paths) {
    this.again = () => this.load(paths)
    const wanted = Symbol("load")
    this.wanted = wanted
    const parts = this.parts.filter((part) => paths[part.name])
    const answers = await Promise.allSettled(parts.map((part) => getJson(withTheme(paths[part.name]))))
    if (this.wanted !== wanted) return
    if (answers.some((answer) => answer.value) && !(await this.canDraw(wanted))) return
    const refusals = answers.map((answer) => answer.reason).filter(Boolean)
    const worst = refusals.find((error) => error.status !== 404) ?? refusals[0]
    if (worst && (worst.status !== 404 || refusals.length === parts.length)) return this.fail(worst)
    for (const part of this.parts) part.figure = shown(answers[parts.indexOf(part)]?.value)
    // An answer without a figure says that there is nothing to draw, and that this is no error.
    if (!this.hasPicture()) return this.say(NOTHING_YET)
    this.draw()
  }

  /** Draw figures that the page has already, by the names of the parts. */
  async show(figures) {
    this.again = () => this.show(figures)
    const wanted = Symbol("show")
    this.wanted = wanted
    if (!isPlotlyReady() && !(await this.canDraw(wanted))) return
    for (const part of this.parts) part.figure = shown(figures[part.name])
    this.draw()
  }

  /** Show words in place of the picture: `{markName, title, text, act}`. */
  say({ markName, title, text, act }) {
    clearTimeout(this.patience)
    this.wanted = null
    this.isWordsOnly = true
    for (const part of this.parts) part.figure = null
    this.drawHeader()
    patch(this.foot)
    patch(
      this.body,
      h(
        "div",
        { class: "panel-state" },
        stateIcon(markName),
        h("b", {}, title),
        h("p", {}, tidy(text)),
        act && h("button", { class: "text-button", type: "button", onclick: act.onclick }, act.text),
      ),
    )
  }

  /** Change the grey words beside the title. */
  explain(explanation) {
    this.explanation = explanation
    this.drawHeader()
  }

  /** Stop watching the page. */
  remove() {
    clearTimeout(this.patience)
    this.wanted = null
    this.observer.disconnect()
    for (const { plot, pointer } of this.parts) {
      pointer.remove()
      if (isPlotlyReady()) Plotly.purge(plot)
    }
  }

  /** Whether Plotly is here and the figures are still wanted; without Plotly the card says so. */
  async canDraw(wanted) {
    try {
      await plotlyReady()
      return this.wanted === wanted
    } catch (error) {
      if (this.wanted === wanted) this.fail(error)
      return false
    }
  }

  hasPicture() {
    return this.parts.some((part) => part.figure)
  }

  fail(error) {
    // What is drawn stays; the next change tries again.
    if (this.hasPicture() && error.status === 0) return
    if (error.problem?.code === "no_longer_stored") {
      this.say({ markName: "not-analysed", title: "No longer stored", text: `${contained(error.message)}.` })
      return
    }
    if (error.status === 404) {
      this.say({
        markName: "not-analysed",
        title: "Not analysed yet",
        text: "No complete step of this window has arrived.",
      })
      return
    }
    if (error.status === 409) {
      this.say({ markName: "not-analysed", title: "Nothing to show yet", text: `${contained(error.message)}.` })
      return
    }
    const what = error.status ? `The server answered ${error.status}` : "The server did not answer"
    this.say({
      markName: "warning",
      title: "Could not load this panel",
      text: `${what} at ${clock(error.at ?? new Date())}. The rest of the page is complete.`,
      act: { text: "Try again", onclick: () => this.again() },
    })
  }

  draw() {
    clearTimeout(this.patience)
    this.isWordsOnly = false
    const drawn = this.parts.filter((part) => part.figure)
    // What was drawn once stays: a value that crosses the limit now and then moves nothing.
    this.hasGrid ||= drawn.some(({ figure }) => this.hasGridIn(figure))
    this.drawHeader()
    const notes = drawn.map((part) => part.figure.meta.note).filter(Boolean)
    patch(
      this.foot,
      notes.map((note) => h("p", { class: "remark" }, tidy(note))),
    )
    if (this.isTable) {
      patch(
        this.body,
        drawn.map((part) => chartTable(part.figure.meta)),
      )
      return
    }
    const plotted = drawn.filter(({ figure }) => this.hasGrid || !figure.meta.alike)
    patch(
      this.body,
      plotted.map((part) => part.pointer.node),
      drawn.filter((part) => !plotted.includes(part)).map(({ figure }) => this.sentence(figure.meta.alike)),
    )
    for (const part of plotted) this.drawPlot(part, part !== plotted.at(-1))
  }

  /** Whether a figure is a grid with different values; other charts are none. */
  hasGridIn({ data, meta }) {
    return !meta.alike && data.some(({ type }) => type === "heatmap")
  }

  sentence(alike) {
    const showGrid = () => {
      this.hasGrid = true
      this.draw()
    }
    return h(
      "p",
      { class: "alike" },
      `${tidy(alike)} `,
      h("button", { class: "text-button", type: "button", onclick: showGrid }, "Show anyway"),
    )
  }

  drawPlot({ plot, figure, pointer }, isAbove) {
    this.width_px = this.body.clientWidth
    const { data, layout } = fitToWidth(this.aligned(figure), this.width_px, isAbove)
    Plotly.react(plot, data, { uirevision: "kept", ...layout }, CONFIG)
    pointer.show(figure, layout)
  }

  /** Charts of one card share the range and the margins of their x axis. */
  aligned(figure) {
    const all = this.parts.filter((part) => part.figure).map((part) => part.figure.layout)
    const margin = { ...figure.layout.margin, r: Math.max(...all.map((layout) => layout.margin.r)) }
    return {
      ...figure,
      layout: { ...figure.layout, margin, xaxis: { ...figure.layout.xaxis, range: all[0].xaxis.range } },
    }
  }

  resize() {
    if (!this.hasPicture() || this.isTable || this.body.clientWidth === this.width_px) return
    this.draw()
  }

  /** Whether a sentence stands in place of all pictures. */
  get isSentence() {
    return this.hasPicture() && !this.hasGrid && this.parts.every(({ figure }) => !figure || figure.meta.alike)
  }

  drawHeader() {
    const hasKey = !this.isWordsOnly && !this.isSentence
    const toggle = () => {
      this.isTable = !this.isTable
      this.draw()
    }
    patch(
      this.header,
      h("h2", {}, this.title),
      this.explanation && h("span", { class: "explanation" }, this.explanation),
      this.legend && !this.isTable && hasKey && h("div", { class: "key" }, this.legend(this.parts[0].figure)),
      this.controls && hasKey && this.controls(),
      this.hasPicture() &&
        h(
          "button",
          {
            class: "text-button toggle",
            type: "button",
            "aria-label": `${this.title}: show as ${this.isTable ? "chart" : "table"}`,
            onclick: toggle,
          },
          this.isTable ? "Show chart" : "Show table",
        ),
    )
  }
}

const shown = (figure) => (figure ? withLocalClock(figure) : null)

function newPart(name, highlight) {
  const plot = h("div", { class: "plot", "data-own": true })
  return { name, plot, pointer: new PlotPointer(plot, highlight), figure: null, path: null }
}

/** Grey cells in the job's shape, for the first load of a heatmap. */
export function waitingCells(parallelism) {
  const columns = Math.min(parallelism?.dp_size ?? 8, 64)
  const rows = Math.min(parallelism?.pp_size ?? 4, 16)
  const cells = Array.from({ length: columns * rows }, () => h("i"))
  return h("div", { class: "waiting-cells", style: `grid-template-columns: repeat(${columns}, 1fr)` }, cells)
}

function waitingBlock() {
  return h("div", { class: "waiting-block" })
}

function withTheme(path) {
  return `${path}${path.includes("?") ? "&" : "?"}theme=${theme()}`
}

/** The key of a chart; `items` are `[kind, text]`, the kind a CSS class. */
export function legend(...items) {
  return h(
    "span",
    { class: "legend" },
    items.map(([kind, text]) => h("span", {}, h("i", { class: kind }), text)),
  )
}

/** A figure's numbers as a table; `meta` is the figure's own. */
export function chartTable({ table: { columns, rows, caption }, text }) {
  const isNumber = columns.map((_, at) => rows.every((row) => row[at] === null || /^[\u2212\d]/.test(String(row[at]))))
  const cell = (tag) => (value, at) =>
    h(tag, { class: isNumber[at] && "is-number" }, value === null ? "" : tidy(String(value)))
  return h(
    "div",
    { class: "table-frame", tabindex: "0", role: "region", "aria-label": text },
    h(
      "table",
      {},
      caption && h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(cell("th")))),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, row.map(cell("td")))),
      ),
    ),
  )
}

const NARROW_PX = 480
const MIN_VALUE_CELL_PX = 40
const STEP_LEFT_PX = 148
const NARROW_STEP_LEFT_PX = 64

/**
 * A figure fitted to a width: gaps and values of cells by their pixels, short labels when narrow.
 *
 * With `isAbove` another chart of the card stands under it and has the same axis, labelled there.
 */
function fitToWidth(figure, width_px, isAbove) {
  const layout = { ...figure.layout, margin: { ...figure.layout.margin }, width: width_px }
  if (width_px < NARROW_PX) shorten(layout)
  if (isAbove) hideSteps(layout)
  const plot_px = width_px - layout.margin.l - layout.margin.r
  const [from, to] = layout.xaxis.range
  const cell_px = plot_px / (to - from)
  const data = figure.data
    .filter((trace) => trace.name !== "values" || cell_px >= MIN_VALUE_CELL_PX)
    .map((trace) => (trace.type === "heatmap" ? fitCells(trace, cell_px) : trace))
    .map((trace) => (trace.meta?.short && width_px < NARROW_PX ? { ...trace, text: trace.meta.short } : trace))
  return { data, layout }
}

function fitCells(trace, cell_px) {
  return { ...trace, xgap: Math.min(trace.xgap, cell_px < 3 ? 0 : cell_px < 12 ? 1 : 3) }
}

function hideSteps(layout) {
  layout.height -= layout.margin.b - 4
  layout.margin.b = 4
  layout.xaxis = { ...layout.xaxis, showticklabels: false }
}

function shorten(layout) {
  const labels = layout.yaxis.ticktext
  if (layout.margin.l === STEP_LEFT_PX) {
    layout.margin.l = NARROW_STEP_LEFT_PX
    if (labels) layout.yaxis = { ...layout.yaxis, ticktext: labels.map((label) => label.split(" <")[0]) }
  } else if (labels?.[0]?.startsWith("stage ") && layout.margin.l === 60) {
    layout.margin.l = 28
    layout.yaxis = { ...layout.yaxis, ticktext: labels.map((label) => label.replace("stage ", "s")) }
  }
  if (layout.xaxis.tickvals?.length > 5) layout.xaxis = thinned(layout.xaxis)
}

function thinned(axis) {
  const every = Math.ceil(axis.tickvals.length / 5)
  const keep = (_, index) => index % every === 0
  return { ...axis, tickvals: axis.tickvals.filter(keep), ticktext: axis.ticktext?.filter(keep) }
}
