/** The whole run as a ribbon of windows, and the window that the page shows. */

import { h, patch } from "../../lib/dom.js"
import { NOT_MEASURED, ratio, stepRange, whole } from "../../lib/formatting.js"
import { minutes, zoneName } from "../../lib/times.js"
import { colourAt } from "./colour-scale.js"
import { timeRangeForm } from "./time-range.js"

const FAR = 10
const MOVES = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -FAR, PageUp: FAR }
const WAYS = [
  { pick: "recent", text: "Follow", title: "The steps of the last windows, since the job last changed" },
  { pick: "since-onset", text: "Since onset", title: "From the step in which the leading cause began to the newest" },
  { pick: "all", text: "All", title: "All windows of this run" },
]

/**
 * The card with its ribbon; `onPick(pick)` takes "recent", "since-onset", "all", or windows.
 *
 * `onPickTime({from, to})` takes a range of clock times.
 */
export class Scrubber {
  constructor({ onPick, onPickTime }) {
    Object.assign(this, { onPick, onPickTime, isTimeOpen: false })
    this.ribbon = null
    this.placed = { bins: [], gaps: [] }
    this.drag = null
    this.track = h("div", { class: "track", "data-own": true })
    this.ways = h("div", { class: "segments", role: "group", "aria-label": "Windows shown", "data-own": true })
    this.times = h("div", { class: "times", id: "time-range", "data-own": true })
    this.what = h("div", { class: "what", "data-own": true })
    this.node = h(
      "section",
      { class: "card scrubber", "aria-label": "Window", "data-own": true },
      this.ways,
      this.track,
      this.what,
      this.times,
    )
    this.listen()
  }

  /** Draw a ribbon, the chosen `pick` and its windows `[from, to]`. */
  show({ ribbon, pick, windows, words, time = null }) {
    Object.assign(this, { ribbon, pick, time, placed: laidOut(ribbon) })
    this.range = rangeOf(ribbon.bins, windows)
    patch(
      this.ways,
      WAYS.map((way) => this.way(way)),
      this.timeWay(),
    )
    this.drawTimes()
    patch(
      this.what,
      words.map((line) => h("span", {}, line)),
    )
    this.draw()
  }

  way({ pick, text, title }) {
    const isOff = !this.ribbon.bins.length || (pick === "since-onset" && !this.ribbon.since_onset)
    return h(
      "button",
      {
        type: "button",
        title: isOff ? "There is no window of this kind" : title,
        disabled: isOff,
        "aria-pressed": String(this.pick === pick),
        onclick: () => this.onPick(pick),
      },
      text,
    )
  }

  timeWay() {
    return h(
      "button",
      {
        type: "button",
        title: "From one time of day to another",
        "aria-expanded": String(this.isTimeOpen),
        "aria-controls": "time-range",
        "aria-pressed": String(this.pick === "time"),
        onclick: () => this.toggleTimes(),
      },
      "Time",
    )
  }

  toggleTimes() {
    this.isTimeOpen = !this.isTimeOpen
    this.ways.lastChild.setAttribute("aria-expanded", String(this.isTimeOpen))
    this.drawTimes()
  }

  drawTimes() {
    const { bins } = this.ribbon
    const known = [bins[0]?.first_at, bins.at(-1)?.last_at]
    patch(this.times, this.isTimeOpen && timeRangeForm({ time: this.time, known, onPick: this.onPickTime }))
  }

  draw() {
    const { bins, gaps } = this.placed
    const range = this.drag?.range ?? this.range
    patch(
      this.track,
      h("div", { class: "events", "data-key": "events" }, this.events()),
      h(
        "div",
        { class: "cells", "data-key": "cells" },
        bins.length ? [gaps.map(gapLine), bins.map(cell)] : h("i", { class: "gap", style: "left: 0; width: 100%" }),
      ),
      h("div", { class: "steps", "data-key": "steps", "aria-hidden": "true" }, stepLabels(bins).map(stepLabel)),
      range && this.frame(range),
    )
  }

  events() {
    const { bins } = this.placed
    const shown = this.ribbon.events
      .filter(({ bin }) => bins[bin])
      .map((event) => ({ ...event, when: event.at, at: placeOf(event, bins[event.bin]) }))
      .sort((a, b) => a.at - b.at)
    const named = new Set(spread(shown, 0.16))
    return shown.map((event) =>
      h(
        "span",
        {
          class: event.at > 0.8 ? "event is-right" : "event",
          style: `left: ${percent(event.at)}`,
          title: event.when ? `${event.text}, ${minutes(new Date(event.when))}` : event.text,
        },
        named.has(event) && h("span", {}, event.text),
      ),
    )
  }

  /** The frame with its two handles: the first bin, both, the last one. */
  frame([first, last]) {
    const { bins } = this.placed
    const [left, right] = [bins[first].left, bins[last].left + bins[last].width]
    return h(
      "div",
      { class: "frame", "data-key": "frame", style: `left: ${percent(left)}; width: ${percent(right - left)}` },
      this.handle(
        "both",
        "Windows shown",
        `${stepRange(bins[first].first_step, bins[last].last_step)}${clockRange(bins[first], bins[last])}`,
        first,
      ),
      this.handle(
        "first",
        "First window shown",
        `step ${whole(bins[first].first_step)}${clockRange(bins[first])}`,
        first,
      ),
      this.handle("last", "Last window shown", `step ${whole(bins[last].last_step)}${clockRange(bins[last])}`, last),
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
    this.track.addEventListener("dblclick", () => this.onPick("recent"))
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
    drag.range =
      drag.name === "new"
        ? sameRun(this.placed.bins, sorted, at > drag.from)
        : this.moved(drag.name, drag.start, at - drag.from)
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
  if (isNewest && first === last) return "recent"
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
  const figure = bin.verdict === "low" ? "low fidelity" : isKnown ? ratio(bin.slowdown) : NOT_MEASURED
  const colour = isKnown ? `; --cell: ${colourAt(bin.slowdown)}` : ""
  return h("i", {
    class: isKnown ? null : "is-unknown",
    style: `left: ${percent(bin.left)}; width: ${percent(bin.width)}${colour}`,
    title: `${stepRange(bin.first_step, bin.last_step)}${clockRange(bin)}, ${figure}`,
  })
}

/** ", 02:41 to 02:43" of one bin or of several; "" where the times are not known. */
function clockRange(first, last = first) {
  const [{ first_at }, { last_at }] = [first, last]
  if (!first_at || !last_at) return ""
  const [from, to] = [first_at, last_at].map((at) => minutes(new Date(at)))
  return from === to ? `, ${from}` : `, ${from} to ${to}`
}

function gapLine({ left, width, num_steps }) {
  return h("i", {
    class: "gap",
    style: `left: ${percent(left)}; width: ${percent(width)}`,
    title: `${whole(num_steps)} steps not recorded`,
  })
}

const percent = (share) => `${(100 * share).toFixed(3)}%`

// A long gap is shortened, to leave room for what was recorded.
const MAX_GAP = 0.5
const NUM_LABELS = 7

// The number of steps in a bin, complete or not.
const sizeOf = ({ num_steps, first_step, last_step }) => num_steps || last_step - first_step + 1

/** The bins with `left` and `width`, and gaps alike; a bin is as wide as the steps that it has. */
function laidOut({ bins, gaps }) {
  const total = bins.reduce((sum, bin) => sum + sizeOf(bin), 0)
  const gapAfter = new Map(gaps.map((gap) => [gap.after_bin, Math.min(gap.num_steps, MAX_GAP * total)]))
  const full = total + [...gapAfter.values()].reduce((sum, size) => sum + size, 0)
  let at = 0
  const placed = { bins: [], gaps: [] }
  bins.forEach((bin, index) => {
    const width = sizeOf(bin) / full
    placed.bins.push({ ...bin, left: at, width })
    at += width
    if (!gapAfter.has(index)) return
    placed.gaps.push({ ...gaps.find((gap) => gap.after_bin === index), left: at, width: gapAfter.get(index) / full })
    at += gapAfter.get(index) / full
  })
  return placed
}

/** A step, and under it the time of day at which it started. */
function stepLabel({ at, text, date }) {
  return h(
    "span",
    { style: `left: ${percent(at)}` },
    text,
    date && h("small", { title: zoneName(date) }, minutes(date)),
  )
}

/** When about a step of a bin started: between its first and its last one's times. */
function dateIn({ first_step, last_step, first_at, last_at }, step) {
  if (!first_at || !last_at) return null
  const [from, to] = [first_at, last_at].map((at) => new Date(at).getTime())
  return new Date(from + ((to - from) * (step - first_step)) / Math.max(1, last_step - first_step))
}

/** Round steps with the place of each, and the first step of a run that begins anew. */
function stepLabels(bins) {
  if (!bins.length) return []
  const numSteps = bins.reduce((sum, bin) => sum + sizeOf(bin), 0)
  const every = nice(numSteps / NUM_LABELS)
  const labels = [{ at: 0, text: `step ${whole(bins[0].first_step)}`, date: dateIn(bins[0], bins[0].first_step) }]
  for (const bin of bins) {
    const { first_step, last_step, left, width } = bin
    const round = Math.ceil(first_step / every) * every
    if (round > last_step) continue
    const at = left + (width * (round - first_step)) / (last_step - first_step + 1)
    labels.push({ at, text: whole(round), date: dateIn(bin, round) })
  }
  return spread(labels, 0.11)
}

/** Labels without those that would overlap the one before. */
function spread(labels, room) {
  const kept = []
  for (const label of labels) {
    if (label.at <= 0.97 && (!kept.length || label.at - kept.at(-1).at >= room)) kept.push(label)
  }
  return kept
}

/** The bin under a share of the width: the nearest one, in a gap too. */
function binAt(bins, share) {
  let best = 0
  bins.forEach(({ left, width }, index) => {
    if (Math.abs(left + width / 2 - share) < Math.abs(bins[best].left + bins[best].width / 2 - share)) best = index
    if (left <= share && share < left + width) best = index
  })
  return best
}

function nice(spacing) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (digit * power >= spacing) return digit * power
  }
}
