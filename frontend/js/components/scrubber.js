/** The whole run as a ribbon, and the windows that the page shows: it moves every chart. */

import { h, patch } from "../dom.js"
import { NOT_MEASURED, ratio, stepRange, whole } from "../words.js"
import { binAt, laidOut, spread, stepLabels } from "./ribbon-scale.js"
import { colourAt } from "./scale.js"

const FAR = 10
const MOVES = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -FAR, PageUp: FAR }
const WAYS = [
  { pick: "latest", text: "Follow", title: "The newest window, as it grows" },
  { pick: "since-onset", text: "Since onset", title: "From the window in which the leading cause began to the newest" },
  { pick: "all", text: "All", title: "All windows of this run" },
]

/** The card with its ribbon; `onPick(pick)` takes "latest", "since-onset", "all", or windows. */
export class Scrubber {
  constructor({ onPick }) {
    this.onPick = onPick
    this.ribbon = null
    this.placed = { bins: [], gaps: [] }
    this.drag = null
    this.track = h("div", { class: "track", "data-own": true })
    this.ways = h("div", { class: "segments", role: "group", "aria-label": "Windows shown", "data-own": true })
    this.what = h("div", { class: "what", "data-own": true })
    this.node = h("section", { class: "card scrubber", "aria-label": "Window", "data-own": true }, this.ways, this.track, this.what)
    this.listen()
  }

  /** Draw a ribbon, the `pick` that is chosen and the windows `[from, to]` that it comes to. */
  show({ ribbon, pick, windows, words }) {
    Object.assign(this, { ribbon, pick, placed: laidOut(ribbon) })
    this.range = rangeOf(ribbon.bins, windows)
    patch(this.ways, WAYS.map((way) => this.way(way)))
    patch(this.what, words.map((line) => h("span", {}, line)))
    this.draw()
  }

  way({ pick, text, title }) {
    const isOff = !this.ribbon.bins.length || (pick === "since-onset" && !this.ribbon.since_onset)
    return h("button", { type: "button", title: isOff ? "There is no window of this kind" : title, disabled: isOff, "aria-pressed": String(this.pick === pick), onclick: () => this.onPick(pick) }, text)
  }

  draw() {
    const { bins, gaps } = this.placed
    const range = this.drag?.range ?? this.range
    patch(
      this.track,
      h("div", { class: "events", "data-key": "events" }, this.events()),
      h("div", { class: "cells", "data-key": "cells" }, bins.length ? [gaps.map(gapLine), bins.map(cell)] : h("i", { class: "gap", style: "left: 0; width: 100%" })),
      h("div", { class: "steps", "data-key": "steps", "aria-hidden": "true" }, stepLabels(bins).map((label) => h("span", { style: `left: ${percent(label.at)}` }, label.text))),
      range && this.frame(range),
    )
  }

  events() {
    const { bins } = this.placed
    const shown = this.ribbon.events.filter(({ bin }) => bins[bin]).map((event) => ({ ...event, at: placeOf(event, bins[event.bin]) })).sort((a, b) => a.at - b.at)
    const named = new Set(spread(shown, 0.16))
    return shown.map((event) => h("span", { class: event.at > 0.8 ? "event is-right" : "event", style: `left: ${percent(event.at)}`, title: event.text }, named.has(event) && h("span", {}, event.text)))
  }

  /** The frame with its two handles: the first bin, both, the last one. */
  frame([first, last]) {
    const { bins } = this.placed
    const [left, right] = [bins[first].left, bins[last].left + bins[last].width]
    return h(
      "div",
      { class: "frame", "data-key": "frame", style: `left: ${percent(left)}; width: ${percent(right - left)}` },
      this.handle("both", "Windows shown", `steps ${whole(bins[first].first_step)} to ${whole(bins[last].last_step)}`, first),
      this.handle("first", "First window shown", `step ${whole(bins[first].first_step)}`, first),
      this.handle("last", "Last window shown", `step ${whole(bins[last].last_step)}`, last),
    )
  }

  handle(name, label, text, now) {
    return h("div", {
      class: `handle is-${name}`,
      role: "slider",
      tabindex: "0",
      "data-handle": name,
      "aria-label": label,
      "aria-valuemin": "0",
      "aria-valuemax": String(this.placed.bins.length - 1),
      "aria-valuenow": String(now),
      "aria-valuetext": text,
      onkeydown: (event) => this.key(event, name),
    })
  }

  key(event, name) {
    const move = event.key === "Home" ? -Infinity : event.key === "End" ? Infinity : MOVES[event.key]
    if (move === undefined || event.altKey || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    this.commit(this.moved(name, this.range, move * (event.shiftKey && Math.abs(move) === 1 ? FAR : 1)))
  }

  /** A range with one of its ends moved, or both; never beyond its run or its other end. */
  moved(name, [first, last], by) {
    const { bins } = this.placed
    const held = (at, low, high) => Math.min(Math.max(at, low), high)
    if (name === "both") {
      const shift = held(by, -first, bins.length - 1 - last)
      return sameRun(bins, [first + shift, last + shift], shift < 0)
    }
    if (name === "first") return sameRun(bins, [held(first + by, 0, last), last], false)
    return sameRun(bins, [first, held(last + by, first, bins.length - 1)], true)
  }

  listen() {
    this.track.addEventListener("pointerdown", (event) => this.pressed(event))
    this.track.addEventListener("pointermove", (event) => this.dragged(event))
    this.track.addEventListener("pointerup", () => this.released())
    this.track.addEventListener("pointercancel", () => this.cancel())
    this.track.addEventListener("dblclick", () => this.onPick("latest"))
  }

  under(event) {
    const box = this.track.getBoundingClientRect()
    return binAt(this.placed.bins, (event.clientX - box.left) / box.width)
  }

  pressed(event) {
    if (event.button || !this.placed.bins.length) return
    const name = event.target.closest("[data-handle]")?.dataset.handle ?? "new"
    const at = this.under(event)
    this.track.setPointerCapture(event.pointerId)
    this.drag = { name, from: at, start: this.range, range: name === "new" ? [at, at] : this.range, hasMoved: false }
    this.draw()
  }

  dragged(event) {
    const { drag } = this
    if (!drag) return
    const at = this.under(event)
    drag.hasMoved ||= at !== drag.from
    const sorted = [drag.from, at].sort((a, b) => a - b)
    drag.range = drag.name === "new" ? sameRun(this.placed.bins, sorted, at > drag.from) : this.moved(drag.name, drag.start, at - drag.from)
    this.draw()
  }

  released() {
    const { drag } = this
    if (!drag) return
    // A click inside a wide frame picks the window under the pointer.
    const range = drag.name === "both" && !drag.hasMoved ? [drag.from, drag.from] : drag.range
    this.cancel()
    this.commit(range)
  }

  cancel() {
    this.drag = null
    this.draw()
  }

  commit([first, last]) {
    if (this.range && first === this.range[0] && last === this.range[1]) return
    this.range = [first, last]
    this.draw()
    this.onPick(pickOf(this.placed.bins, [first, last]))
  }
}

/** What the address says of a range of bins. */
function pickOf(bins, [first, last]) {
  const isNewest = last === bins.length - 1 && bins[last].is_open
  if (isNewest && first === last) return "latest"
  return bins[first].from === bins[last].to ? bins[first].from : `${bins[first].from}..${bins[last].to}`
}

/** The bins that hold windows `[from, to]`; null where they are no longer in the ribbon. */
function rangeOf(bins, windows) {
  if (!windows) return null
  const [from, to] = windows.map(parts)
  const inside = bins.flatMap((bin, index) => {
    const [first, last] = [parts(bin.from), parts(bin.to)]
    return first.epoch === from.epoch && last.step >= from.step && first.step <= to.step ? [index] : []
  })
  return inside.length ? [inside[0], inside.at(-1)] : null
}

function parts(windowId) {
  const [epoch, step] = windowId.split("-").map(Number)
  return { epoch, step }
}

/** Windows of one run only: the end that was moved gives way, or with `keepsFirst` the last. */
function sameRun(bins, [first, last], keepsFirst) {
  const { epoch } = bins[keepsFirst ? first : last]
  if (keepsFirst) while (bins[last].epoch !== epoch) last -= 1
  else while (bins[first].epoch !== epoch) first += 1
  return [first, last]
}

function placeOf({ step, epoch }, { first_step, last_step, left, width, epoch: ofBin }) {
  if (epoch !== ofBin || step <= first_step) return left
  return left + (width * Math.min(step - first_step, last_step - first_step)) / (last_step - first_step + 1)
}

function cell(bin) {
  const isKnown = bin.slowdown !== null && bin.verdict !== "low"
  const told = bin.verdict === "low" ? "low fidelity" : isKnown ? ratio(bin.slowdown) : NOT_MEASURED
  const style = `left: ${percent(bin.left)}; width: ${percent(bin.width)}${isKnown ? `; --cell: ${colourAt(bin.slowdown)}` : ""}`
  return h("i", { class: isKnown ? null : "is-unknown", style, title: `${stepRange(bin.first_step, bin.last_step)}, ${told}` })
}

function gapLine({ left, width, num_steps }) {
  return h("i", { class: "gap", style: `left: ${percent(left)}; width: ${percent(width)}`, title: `${whole(num_steps)} steps not recorded` })
}

const percent = (share) => `${(100 * share).toFixed(3)}%`
