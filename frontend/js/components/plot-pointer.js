/** Pointing at charts: hover, click, draw a range of steps, move with the arrow keys; which cell is where. */

import { announce, h, patch } from "../lib/dom.js"
import { isKnown, whole } from "../lib/formatting.js"

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }
const FAR = 10

// A pointer that moves less than this has clicked.
const DRAG_PX = 5

/** One plot, and over it an overlay that marks cells without redrawing the plot. */
export class PlotPointer {
  constructor(plot, highlight) {
    this.plot = plot
    this.highlight = highlight
    this.sheet = h("div", { class: "marks", "aria-hidden": "true", "data-own": true })
    this.node = h("div", { class: "plot-frame", "data-own": true }, plot, this.sheet)
    this.places = null
    this.cursor = null
    this.drag = null
    if (highlight) this.listen()
  }

  /** The figure as it is drawn now. */
  show(figure, layout) {
    this.places = new PlotCells(figure, layout)
    const isWalked = Boolean(this.highlight && this.places.isGrid)
    set(this.plot, "tabindex", isWalked ? "0" : null)
    this.plot.setAttribute("role", isWalked ? "application" : "img")
    const keys = isWalked ? " Arrow keys move over the cells, Enter pins, Escape clears." : ""
    this.plot.setAttribute("aria-label", figure.meta.text + keys)
    this.mark()
  }

  /** Stop watching. */
  remove() {
    this.stop?.()
  }

  listen() {
    this.stop = this.highlight.onChange(() => this.mark())
    // Plotly would cover the page with an element of its own, which would get the pointerup.
    this.node.addEventListener("mousedown", (event) => event.stopPropagation(), true)
    const on = (name, handler) => this.node.addEventListener(name, handler)
    on("pointermove", (event) => this.moved(event))
    on("pointerleave", (event) => this.left(event))
    on("pointerdown", (event) => this.pressed(event))
    on("pointerup", (event) => this.released(event))
    on("pointercancel", () => this.endDrag())
    on("dblclick", () => this.places?.hasSteps && this.highlight.onFollow?.())
    this.plot.addEventListener("keydown", (event) => this.key(event))
    this.plot.addEventListener("blur", () => this.leave())
  }

  cellUnder(event) {
    const box = this.node.getBoundingClientRect()
    return this.places?.cellAt(event.clientX - box.left, event.clientY - box.top) ?? null
  }

  moved(event) {
    if (event.pointerType === "touch" || this.isResting(event)) return
    if (this.drag) return this.dragged(event)
    const cell = this.cellUnder(event)
    const place = cell && this.places.placeOf(cell)
    this.highlight.hover(place && Object.keys(place).length ? place : null)
  }

  left(event) {
    if (!this.drag && this.cursor === null && !this.isResting(event)) this.highlight.hover(null)
  }

  /** Whether only the page scrolls, under a pointer that rests: what the arrow keys chose stays. */
  isResting(event) {
    return this.highlight.isWalked && event.movementX === 0 && event.movementY === 0
  }

  pressed(event) {
    if (event.button) return
    const cell = this.cellUnder(event)
    this.drag = cell && { cell, x: event.clientX, last: null, isMouse: event.pointerType !== "touch" }
    if (this.drag && this.canRange) this.node.setPointerCapture?.(event.pointerId)
  }

  get canRange() {
    return this.highlight.onRange && this.places?.hasSteps
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
    if (drawn) return this.highlight.onRange(...drawn)
    const cell = this.cellUnder(event)
    if (cell && cell.column === drag.cell.column && cell.row === drag.cell.row)
      this.highlight.pin(this.places.placeOf(cell))
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
      return this.highlight.pin(this.places.placeOf(this.cursor))
    }
    const move = MOVES[event.key]
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    this.walk(move, event.shiftKey ? FAR : 1)
  }

  freed(event) {
    event.stopPropagation()
    this.leave()
    this.highlight.free()
  }

  walk([across, down], by) {
    const { x, y } = this.places
    const from = this.cursor ?? this.start()
    const held = (at, size) => Math.min(Math.max(at, 0), size - 1)
    this.cursor = this.cursor
      ? { column: held(from.column + across * by, x.items.length), row: held(from.row + down * by, y.items.length) }
      : from
    this.highlight.isWalked = true
    this.highlight.hover(this.places.placeOf(this.cursor))
    announce(this.cursorWords())
    Plotly.Fx.hover(this.plot, [{ curveNumber: 0, pointNumber: [this.cursor.row, this.cursor.column] }])
  }

  /** The cell at which the arrow keys start: the pinned one, else the first. */
  start() {
    const { x, y } = this.places
    const at = (axis) =>
      Math.max(
        0,
        axis.items.findIndex((_, index) =>
          isPart(this.places.placeOf({ [axis === x ? "column" : "row"]: index }), this.highlight.pinned),
        ),
      )
    return { column: at(x), row: at(y) }
  }

  cursorWords() {
    const { dp, stage, step } = this.places.placeOf(this.cursor)
    return placeWords({ dp, stage, step })
  }

  leave() {
    if (this.cursor === null) return
    this.cursor = null
    this.highlight.isWalked = false
    this.highlight.hover(null)
    Plotly.Fx.unhover(this.plot)
  }

  mark() {
    if (!this.places || !this.highlight) return
    const { dp, stage, step } = this.highlight.pinned
    const pinned = [isKnown(dp) && { dp, stage }, isKnown(step) && { step }]
      .filter(Boolean)
      .flatMap((place) => this.places.marks(place))
    const hovered = this.highlight.hovered ? this.places.marks(this.highlight.hovered) : []
    const drawn = this.drag && this.drag.last !== null ? [this.places.stretch(...this.drawnSteps())] : []
    patch(this.sheet, [
      ...this.shown().map(box("is-shown")),
      ...pinned.map(box("is-pinned")),
      ...hovered.map(box("is-hovered")),
      ...drawn.map(box("is-drawn")),
    ])
  }

  /** The rectangle of the steps that the page shows, where the chart has others too. */
  shown() {
    const { shown } = this.highlight
    const stretch = shown && this.places.hasSteps && this.places.stretch(...shown)
    return stretch && stretch.width < this.places.width - 1 ? [stretch] : []
  }

  drawnSteps() {
    const [first, last] = [this.drag.cell.column, this.drag.last].sort((a, b) => a - b)
    return [this.places.stepsOf(first)[0], this.places.stepsOf(last)[1]]
  }
}

/** A place in words: "dp 3, stage 1", "step 1,204". */
function placeWords({ dp, stage, step }) {
  return [
    isKnown(dp) && `dp ${whole(dp)}`,
    isKnown(stage) && `stage ${whole(stage)}`,
    isKnown(step) && `step ${whole(step)}`,
  ]
    .filter(Boolean)
    .join(", ")
}

function isPart(place, pinned) {
  const named = Object.keys(place)
  return named.length > 0 && named.every((part) => place[part] === pinned[part])
}

function box(kind) {
  return ({ isCell, ...edges }) =>
    h("i", {
      class: `${kind}${isCell ? " is-cell" : ""}`,
      style: Object.entries(edges)
        .map(([edge, px]) => `${edge}: ${px.toFixed(1)}px`)
        .join("; "),
    })
}

function set(node, name, value) {
  if (value === null) node.removeAttribute(name)
  else node.setAttribute(name, value)
}

/** Minimum size of a mark, so that it can be seen among 16,384 cells. */
const MIN_MARK_PX = 4

/** The cells of one figure, as `fitToWidth` has laid it out; an axis is null where the figure has no places on it. */
class PlotCells {
  constructor({ meta }, layout) {
    const { margin, width, height, xaxis, yaxis } = layout
    this.left = margin.l
    this.top = margin.t
    this.width = width - margin.l - margin.r
    this.height = height - margin.t - margin.b
    this.x = meta.places?.x && along(meta.places.x, xaxis.range, this.width)
    // Axes count from the bottom, pixels from the top.
    this.y = meta.places?.y && along(meta.places.y, [...yaxis.range].reverse(), this.height)
  }

  /** Whether its x axis has steps, so that a range of them can be drawn. */
  get hasSteps() {
    return this.x?.what === "step"
  }

  /** Whether it has cells in two dimensions, for the arrow keys. */
  get isGrid() {
    return Boolean(this.x && this.y)
  }

  /** Column and row at a pixel of the plot; null outside it. */
  cellAt(px, py) {
    const [x, y] = [px - this.left, py - this.top]
    if (x < 0 || y < 0 || x > this.width || y > this.height) return null
    const cell = { column: this.x && nearest(this.x, x), row: this.y && nearest(this.y, y) }
    return cell.column === null || cell.row === null ? null : cell
  }

  /** The worker, stage, rank or step of a column and a row. */
  placeOf({ column, row }) {
    return { ...itemOf(this.x, column), ...itemOf(this.y, row) }
  }

  /** The first step of a column, and its last one where it is a stretch. */
  stepsOf(column) {
    return bounds(this.x.items[column])
  }

  /** Rectangles `{left, top, width, height, isCell}` that mark a place; none where it is not in it. */
  marks(place) {
    const x = this.x && spans(this.x, place)
    const y = this.y && spans(this.y, place)
    if (!x?.length && !y?.length) return []
    return [this.rectangle(x?.[0], y?.[0], Boolean(x?.length && y?.length))]
  }

  /** The rectangle of a stretch of steps, as far as they are drawn; null where none is. */
  stretch(first, last) {
    const inside = this.x.items.flatMap((item, index) =>
      bounds(item)[1] >= first && bounds(item)[0] <= last ? [index] : [],
    )
    if (!inside.length) return null
    const { centres, half } = this.x
    return this.rectangle([centres[inside[0]] - half, centres[inside.at(-1)] + half], null, false)
  }

  rectangle(x, y, isCell) {
    const [left, width] = x ? widened(x) : [0, this.width]
    const [top, height] = y ? widened(y) : [0, this.height]
    return { left: this.left + left, top: this.top + top, width, height, isCell }
  }
}

function along({ what, items, at }, [from, to], size_px) {
  const pixel = (position) => ((position - from) / (to - from)) * size_px
  const centres = items.map((_, index) => pixel(at ? at[index] : index))
  return { what, items, centres, half: Math.abs(size_px / (to - from)) / 2 }
}

/** The index of the item under a pixel; null in a gap. */
function nearest({ centres, half }, px) {
  let best = null
  centres.forEach((centre, index) => {
    if (best === null || Math.abs(centre - px) < Math.abs(centres[best] - px)) best = index
  })
  return best !== null && Math.abs(centres[best] - px) <= half + 0.5 ? best : null
}

function itemOf(axis, index) {
  if (!axis || index === null || index === undefined) return {}
  const item = axis.items[index]
  if (axis.what === "worker") return { dp: item[0], stage: item[1] }
  return { [axis.what]: Array.isArray(item) ? item[0] : item }
}

const bounds = (item) => (Array.isArray(item) ? [item[0], item.at(-1)] : [item, item])

function holds({ what }, item, place) {
  if (what === "worker") return item[0] === place.dp && item[1] === place.stage
  const wanted = place[what]
  if (wanted === undefined || wanted === null) return false
  if (!Array.isArray(item)) return item === wanted
  return what === "step" ? item[0] <= wanted && wanted <= item.at(-1) : item.includes(wanted)
}

/** Pixels from and to of the items of an axis that hold a place. */
function spans(axis, place) {
  return axis.items.flatMap((item, index) =>
    holds(axis, item, place) ? [[axis.centres[index] - axis.half, axis.centres[index] + axis.half]] : [],
  )
}

function widened([from, to]) {
  const size = Math.max(Math.abs(to - from), MIN_MARK_PX)
  return [(from + to) / 2 - size / 2, size]
}
