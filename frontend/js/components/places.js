/** Where things are in a drawn figure: the worker or step at a pixel, and the pixels of either. */

/** The least size of a mark, so that it can be seen among 16,384 cells. */
const MIN_MARK_PX = 4

/** The places of one figure, as `fit` has made it; null where the figure does not tell them. */
export class Places {
  constructor({ meta }, layout) {
    const { margin, width, height, xaxis, yaxis } = layout
    this.left = margin.l
    this.top = margin.t
    this.width = width - margin.l - margin.r
    this.height = height - margin.t - margin.b
    this.x = meta.places?.x && along(meta.places.x, xaxis.range, this.width)
    // An axis begins at the bottom, pixels at the top.
    this.y = meta.places?.y && along(meta.places.y, [...yaxis.range].reverse(), this.height)
  }

  /** Whether steps lie along it, so that a stretch of them can be drawn. */
  get hasSteps() {
    return this.x?.what === "step"
  }

  /** Whether it has cells that the arrow keys can walk over. */
  get isGrid() {
    return Boolean(this.x && this.y)
  }

  /** Column and row at a pixel of the plot; null beside it. */
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
    const inside = this.x.items.flatMap((item, index) => (bounds(item)[1] >= first && bounds(item)[0] <= last ? [index] : []))
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
  return axis.items.flatMap((item, index) => (holds(axis, item, place) ? [[axis.centres[index] - axis.half, axis.centres[index] + axis.half]] : []))
}

function widened([from, to]) {
  const size = Math.max(Math.abs(to - from), MIN_MARK_PX)
  return [(from + to) / 2 - size / 2, size]
}
