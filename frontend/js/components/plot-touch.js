/** What the reader does with a chart: point, click, draw a stretch of steps, walk with the arrow keys. */

import { announce, h, patch } from "../dom.js"
import { whole } from "../words.js"
import { Places } from "./places.js"

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }
const FAR = 10

// A pointer that moves less than this has clicked.
const DRAG_PX = 5

/** One plot under a sheet on which places are marked; the marks cost no redrawing of the plot. */
export class PlotTouch {
  constructor(plot, spot) {
    this.plot = plot
    this.spot = spot
    this.sheet = h("div", { class: "marks", "aria-hidden": "true", "data-own": true })
    this.node = h("div", { class: "plot-frame", "data-own": true }, plot, this.sheet)
    this.places = null
    this.cursor = null
    this.drag = null
    if (spot) this.listen()
  }

  /** The figure as it is drawn now. */
  show(figure, layout) {
    this.places = new Places(figure, layout)
    const isWalked = Boolean(this.spot && this.places.isGrid)
    set(this.plot, "tabindex", isWalked ? "0" : null)
    this.plot.setAttribute("role", isWalked ? "application" : "img")
    const keys = isWalked ? " Arrow keys move over the cells, Enter pins, Escape frees." : ""
    this.plot.setAttribute("aria-label", figure.meta.text + keys)
    this.mark()
  }

  /** Stop watching. */
  remove() {
    this.stop?.()
  }

  listen() {
    this.stop = this.spot.onChange(() => this.mark())
    // Plotly would lay a sheet over the page, and the end of the press would go there.
    this.node.addEventListener("mousedown", (event) => event.stopPropagation(), true)
    const on = (name, deed) => this.node.addEventListener(name, deed)
    on("pointermove", (event) => this.moved(event))
    on("pointerleave", () => !this.drag && this.cursor === null && this.spot.hover(null))
    on("pointerdown", (event) => this.pressed(event))
    on("pointerup", (event) => this.released(event))
    on("pointercancel", () => this.endDrag())
    on("dblclick", () => this.places?.hasSteps && this.spot.onFollow?.())
    this.plot.addEventListener("keydown", (event) => this.key(event))
    this.plot.addEventListener("blur", () => this.leave())
  }

  cellUnder(event) {
    const box = this.node.getBoundingClientRect()
    return this.places?.cellAt(event.clientX - box.left, event.clientY - box.top) ?? null
  }

  moved(event) {
    if (event.pointerType === "touch") return
    if (this.drag) return this.dragged(event)
    const cell = this.cellUnder(event)
    const place = cell && this.places.placeOf(cell)
    this.spot.hover(place && Object.keys(place).length ? place : null)
  }

  pressed(event) {
    if (event.button) return
    const cell = this.cellUnder(event)
    this.drag = cell && { cell, x: event.clientX, last: null, isMouse: event.pointerType !== "touch" }
    if (this.drag && this.canRange) this.node.setPointerCapture?.(event.pointerId)
  }

  get canRange() {
    return this.spot.onRange && this.places?.hasSteps
  }

  dragged(event) {
    const { drag } = this
    if (!drag.isMouse || !this.canRange || (drag.last === null && Math.abs(event.clientX - drag.x) < DRAG_PX)) return
    const cell = this.cellUnder(event)
    if (cell) drag.last = cell.column
    this.mark()
  }

  released(event) {
    const { drag } = this
    if (!drag) return
    const drawn = drag.last !== null && this.drawnSteps()
    this.endDrag()
    if (drawn) return this.spot.onRange(...drawn)
    const cell = this.cellUnder(event)
    if (cell && cell.column === drag.cell.column && cell.row === drag.cell.row) this.spot.pin(this.places.placeOf(cell))
  }

  endDrag() {
    this.drag = null
    this.mark()
  }

  key(event) {
    if (!this.places?.isGrid) return
    if (event.key === "Escape") return this.freed(event)
    if (event.key === "Enter" && this.cursor) {
      event.preventDefault()
      return this.spot.pin(this.places.placeOf(this.cursor))
    }
    const move = MOVES[event.key]
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    this.walk(move, event.shiftKey ? FAR : 1)
  }

  freed(event) {
    event.stopPropagation()
    this.leave()
    this.spot.free()
  }

  walk([across, down], by) {
    const { x, y } = this.places
    const from = this.cursor ?? this.start()
    const held = (at, size) => Math.min(Math.max(at, 0), size - 1)
    this.cursor = this.cursor
      ? { column: held(from.column + across * by, x.items.length), row: held(from.row + down * by, y.items.length) }
      : from
    this.spot.hover(this.places.placeOf(this.cursor))
    announce(this.told())
    Plotly.Fx.hover(this.plot, [{ curveNumber: 0, pointNumber: [this.cursor.row, this.cursor.column] }])
  }

  /** The walk starts at what is pinned, else at the first cell. */
  start() {
    const { x, y } = this.places
    const at = (axis) => Math.max(0, axis.items.findIndex((_, index) => isPart(this.places.placeOf({ [axis === x ? "column" : "row"]: index }), this.spot.pinned)))
    return { column: at(x), row: at(y) }
  }

  told() {
    const { dp, stage, step } = this.places.placeOf(this.cursor)
    return placeWords({ dp, stage, step })
  }

  leave() {
    if (this.cursor === null) return
    this.cursor = null
    this.spot.hover(null)
    Plotly.Fx.unhover(this.plot)
  }

  mark() {
    if (!this.places || !this.spot) return
    const { dp, stage, step } = this.spot.pinned
    const pinned = [isKnown(dp) && { dp, stage }, isKnown(step) && { step }].filter(Boolean).flatMap((place) => this.places.marks(place))
    const hovered = this.spot.hovered ? this.places.marks(this.spot.hovered) : []
    const drawn = this.drag && this.drag.last !== null ? [this.places.stretch(...this.drawnSteps())] : []
    patch(this.sheet, [...this.shown().map(box("is-shown")), ...pinned.map(box("is-pinned")), ...hovered.map(box("is-hovered")), ...drawn.map(box("is-drawn"))])
  }

  /** The steps that the page is about, where the chart has others beside them. */
  shown() {
    const { shown } = this.spot
    const stretch = shown && this.places.hasSteps && this.places.stretch(...shown)
    return stretch && stretch.width < this.places.width - 1 ? [stretch] : []
  }

  drawnSteps() {
    const [first, last] = [this.drag.cell.column, this.drag.last].sort((a, b) => a - b)
    return [this.places.stepsOf(first)[0], this.places.stepsOf(last)[1]]
  }
}

/** A place in words: "dp 3, stage 1", "step 1,204". */
export function placeWords({ dp, stage, step }) {
  return [isKnown(dp) && `dp ${whole(dp)}`, isKnown(stage) && `stage ${whole(stage)}`, isKnown(step) && `step ${whole(step)}`].filter(Boolean).join(", ")
}

const isKnown = (value) => value !== null && value !== undefined

function isPart(place, pinned) {
  const named = Object.keys(place)
  return named.length > 0 && named.every((part) => place[part] === pinned[part])
}

function box(kind) {
  return ({ left, top, width, height, isCell }) =>
    h("i", { class: `${kind}${isCell ? " is-cell" : ""}`, style: `left: ${left.toFixed(1)}px; top: ${top.toFixed(1)}px; width: ${width.toFixed(1)}px; height: ${height.toFixed(1)}px` })
}

function set(node, name, value) {
  if (value === null) node.removeAttribute(name)
  else node.setAttribute(name, value)
}
