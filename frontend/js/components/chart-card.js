/** A card with one chart from the server: its picture, its table, and what shows instead of them. */

import { getJson } from "../api.js"
import { h, patch } from "../dom.js"
import { theme } from "../theme.js"
import { clock, contained, tidy } from "../words.js"
import { fit } from "./fit.js"
import { mark } from "./mark.js"
import { PlotTouch } from "./plot-touch.js"

const NOTHING_YET = { markName: "not-analysed", title: "Not measured yet", text: "It needs a window with figures that is closed." }
const CONFIG = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false }

/** One chart of a card; a card may stack several over one axis. */
export class ChartCard {
  /**
   * `legend` is a function that makes the key of a figure (null before there is one); `waiting` one that makes the first grey picture.
   *
   * `spot` is what the charts of a page mark together; `controls` makes buttons for the header.
   */
  constructor({ key, title, explanation = "", legend = null, parts = [key], waiting = waitingBlock, spot = null, controls = null }) {
    this.title = title
    this.controls = controls
    this.explanation = explanation
    this.legend = legend
    this.isTable = false
    this.parts = parts.map((name) => newPart(name, spot))
    this.header = h("header")
    this.body = h("div")
    this.foot = h("div")
    this.node = h("section", { class: "card", "data-own": true, "aria-label": title }, this.header, this.body, this.foot)
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
    this.paths = paths
    const wanted = Symbol("load")
    this.wanted = wanted
    const parts = this.parts.filter((part) => paths[part.name])
    const answers = await Promise.allSettled(parts.map((part) => getJson(withTheme(paths[part.name]))))
    if (this.wanted !== wanted) return
    const refusals = answers.map((answer) => answer.reason).filter(Boolean)
    const worst = refusals.find((error) => error.status !== 404) ?? refusals[0]
    if (worst && (worst.status !== 404 || refusals.length === parts.length)) return this.fail(worst)
    for (const part of this.parts) part.figure = answers[parts.indexOf(part)]?.value ?? null
    // An answer without a figure says that there is nothing to draw, and that this is no error.
    if (!this.hasPicture()) return this.say(NOTHING_YET)
    this.draw()
  }

  /** Draw figures that the page has already, by the names of the parts. */
  show(figures) {
    this.wanted = null
    for (const part of this.parts) part.figure = figures[part.name] ?? null
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
        mark(markName),
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
    for (const { plot, touch } of this.parts) {
      touch.remove()
      Plotly.purge(plot)
    }
  }

  hasPicture() {
    return this.parts.some((part) => part.figure)
  }

  fail(error) {
    // Something is already drawn: it stays, and the next change tries again.
    if (this.hasPicture() && error.status === 0) return
    if (error.status === 404) {
      this.say({ markName: "not-analysed", title: "Not analysed yet", text: "No complete step of this window has arrived." })
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
      act: { text: "Try again", onclick: () => this.load(this.paths) },
    })
  }

  draw() {
    clearTimeout(this.patience)
    this.isWordsOnly = false
    this.drawHeader()
    const drawn = this.parts.filter((part) => part.figure)
    const notes = drawn.map((part) => part.figure.meta.note).filter(Boolean)
    patch(this.foot, notes.map((note) => h("p", { class: "remark" }, tidy(note))))
    if (this.isTable) {
      patch(this.body, drawn.map((part) => table(part.figure.meta)))
      return
    }
    patch(this.body, drawn.map((part) => part.touch.node))
    for (const part of drawn) this.drawPlot(part, part !== drawn.at(-1))
  }

  drawPlot({ plot, figure, touch }, isAbove) {
    this.width_px = this.body.clientWidth
    const { data, layout } = fit(this.aligned(figure), this.width_px, isAbove)
    Plotly.react(plot, data, { uirevision: "kept", ...layout }, CONFIG)
    touch.show(figure, layout)
  }

  /** Charts of one card share their axis and its edges, also where the upper one goes on without figures. */
  aligned(figure) {
    const all = this.parts.filter((part) => part.figure).map((part) => part.figure.layout)
    const margin = { ...figure.layout.margin, r: Math.max(...all.map((layout) => layout.margin.r)) }
    return { ...figure, layout: { ...figure.layout, margin, xaxis: { ...figure.layout.xaxis, range: all[0].xaxis.range } } }
  }

  resize() {
    if (!this.hasPicture() || this.isTable || this.body.clientWidth === this.width_px) return
    this.draw()
  }

  drawHeader() {
    const toggle = () => {
      this.isTable = !this.isTable
      this.draw()
    }
    patch(
      this.header,
      h("h2", {}, this.title),
      this.explanation && h("span", { class: "explanation" }, this.explanation),
      this.legend && !this.isTable && !this.isWordsOnly && h("div", { class: "key" }, this.legend(this.parts[0].figure)),
      this.controls && !this.isWordsOnly && this.controls(),
      this.hasPicture() &&
        h("button", { class: "text-button toggle", type: "button", "aria-label": `${this.title}: show as ${this.isTable ? "chart" : "table"}`, onclick: toggle }, this.isTable ? "Show chart" : "Show table"),
    )
  }
}

function newPart(name, spot) {
  const plot = h("div", { class: "plot", "data-own": true })
  return { name, plot, touch: new PlotTouch(plot, spot), figure: null, path: null }
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

/** A figure's numbers as a table; `meta` is the figure's own. */
export function table({ table: { columns, rows, caption }, text }) {
  const isNumber = columns.map((_, at) => rows.every((row) => row[at] === null || /^[\u2212\d]/.test(String(row[at]))))
  const cell = (tag) => (value, at) => h(tag, { class: isNumber[at] && "is-number" }, value === null ? "" : tidy(String(value)))
  return h(
    "div",
    { class: "table-frame", tabindex: "0", role: "region", "aria-label": text },
    h("table", {}, caption && h("caption", {}, caption), h("thead", {}, h("tr", {}, columns.map(cell("th")))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell("td")))))),
  )
}
