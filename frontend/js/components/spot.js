/** Which worker or step the reader points at, and which is pinned: the same in every chart. */

/** What a place may say: dp rank, stage, step. One that it does not say is any. */
const PARTS = ["dp", "stage", "step"]

/** Shared by all charts of a page; each listener marks its own. */
export class Spot {
  /**
   * `onPin(place)` takes what the reader pins or frees (a part that is null is free);
   * `onRange(first, last)` steps drawn with the pointer; `onFollow()` a double click.
   */
  constructor({ onPin = () => {}, onRange = null, onFollow = null } = {}) {
    Object.assign(this, { onPin, onRange, onFollow })
    this.hovered = null
    this.pinned = {}
    this.shown = null
    this.listeners = new Set()
  }

  /** Call `listener` after each change; gives back how to stop. */
  onChange(listener) {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  /** Mark what the reader points at; null for nothing. */
  hover(place) {
    if (isSame(place, this.hovered)) return
    this.hovered = place
    this.tell()
  }

  /** The first and the last step that the page is about. */
  about(first, last) {
    if (this.shown?.[0] === first && this.shown?.[1] === last) return
    this.shown = [first, last]
    this.tell()
  }

  /** What is pinned from now on, as the address has it. */
  show(pinned) {
    if (isSame(pinned, this.pinned)) return
    this.pinned = pinned
    this.tell()
  }

  /** Pin a place, or free it where it is pinned already. */
  pin(place) {
    // A rank or a stage alone is nobody.
    const isWorker = place.dp !== undefined && place.stage !== undefined
    const known = Object.fromEntries(PARTS.filter((part) => place[part] !== undefined && (isWorker || part === "step")).map((part) => [part, place[part]]))
    if (!Object.keys(known).length) return
    const isPinned = PARTS.every((part) => known[part] === undefined || known[part] === this.pinned[part])
    const next = isPinned ? Object.fromEntries(Object.keys(known).map((part) => [part, null])) : known
    this.onPin(next)
  }

  /** Free all that is pinned. */
  free() {
    if (PARTS.some((part) => isNumber(this.pinned[part]))) this.onPin({ dp: null, stage: null, step: null })
  }

  tell() {
    for (const listener of this.listeners) listener()
  }
}

const isNumber = (value) => value !== null && value !== undefined

function isSame(one, other) {
  return PARTS.every((part) => (one?.[part] ?? null) === (other?.[part] ?? null))
}
