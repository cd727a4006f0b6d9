/** The worker or step that is hovered or pinned, the same in every chart, and the bar of what is pinned. */

import { hostHref, workerHref, workerName } from "../../components/culprits.js"
import { h } from "../../lib/dom.js"
import { contained, isKnown, NOT_MEASURED, ratio, whole } from "../../lib/formatting.js"

/** Parts of a place; a missing part matches any value. */
const PARTS = ["dp", "stage", "step"]

/** Shared by all charts of a page; each listener marks its own. */
export class Highlight {
  /**
   * `onPin(place)` gets what is pinned or unpinned (a part that is null is unpinned);
   * `onRange(first, last)` steps drawn with the pointer; `onFollow()` a double click.
   */
  constructor({ onPin = () => {}, onRange = null, onFollow = null } = {}) {
    Object.assign(this, { onPin, onRange, onFollow })
    this.hovered = null
    this.isWalked = false // whether the arrow keys chose what is hovered
    this.pinned = {}
    this.shown = null
    this.listeners = new Set()
  }

  /** Call `listener` after each change; returns a function that stops it. */
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

  /** Set what is pinned, as the address has it. */
  show(pinned) {
    if (isSame(pinned, this.pinned)) return
    this.pinned = pinned
    this.tell()
  }

  /** Pin a place, or unpin it where it is pinned already. */
  pin(place) {
    // A dp rank or a stage alone names no worker.
    const isWorker = place.dp !== undefined && place.stage !== undefined
    const known = Object.fromEntries(
      PARTS.filter((part) => place[part] !== undefined && (isWorker || part === "step")).map((part) => [
        part,
        place[part],
      ]),
    )
    if (!Object.keys(known).length) return
    const isPinned = PARTS.every((part) => known[part] === undefined || known[part] === this.pinned[part])
    const next = isPinned ? Object.fromEntries(Object.keys(known).map((part) => [part, null])) : known
    this.onPin(next)
  }

  /** Unpin everything. */
  free() {
    if (PARTS.some((part) => isKnown(this.pinned[part]))) this.onPin({ dp: null, stage: null, step: null })
  }

  tell() {
    for (const listener of this.listeners) listener()
  }
}

function isSame(one, other) {
  return PARTS.every((part) => (one?.[part] ?? null) === (other?.[part] ?? null))
}

/**
 * The bar, or null where nothing is pinned.
 *
 * `worker` is what is known of the pinned worker: `{slowdown, host}`, or null before it is known.
 */
export function pinnedBar({ pinned, worker, base, window, onFree }) {
  const { dp, stage, step } = pinned
  const hasWorker = isKnown(dp) && isKnown(stage)
  if (!hasWorker && !isKnown(step)) return null
  const who = { dp_rank: dp, stage }
  return h(
    "aside",
    { class: "pinned", "aria-label": "Pinned", "data-key": "pinned" },
    h("b", {}, [hasWorker && workerName(who), isKnown(step) && `step ${whole(step)}`].filter(Boolean).join(", ")),
    hasWorker && worker && workerFacts(worker),
    h(
      "span",
      { class: "acts" },
      hasWorker && h("a", { href: workerHref({ base, window }, who) }, "Open worker"),
      h("a", { href: timeline({ base, window, dp, step }) }, "Timeline"),
      h("button", { class: "text-button", type: "button", onclick: onFree }, "Clear (Esc)"),
    ),
  )
}

function workerFacts({ slowdown, host }) {
  return h(
    "span",
    { class: "worker-facts" },
    host && ["on ", h("a", { href: hostHref(host) }, contained(host)), ", "],
    isKnown(slowdown) ? `alone it slows the job to ${ratio(slowdown)}` : NOT_MEASURED,
  )
}

function timeline({ base, window, dp, step }) {
  const known = Object.entries({ window: window === "recent" ? null : window, step, dp }).filter(([, value]) =>
    isKnown(value),
  )
  const query = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString()
  return `${base}/timeline${query && `?${query}`}`
}
