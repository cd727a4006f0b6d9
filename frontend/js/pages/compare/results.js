/** What two windows differ in: figures, causes, and the slowest workers. */

import { culpritWords, hostHref, keysOf, workerHref, workerName } from "../../components/culprits.js"
import { term } from "../../components/definition.js"
import { isOfLastStage, onsetWords } from "../../components/findings-card.js"
import { statStrip } from "../../components/stat-strip.js"
import { causeName } from "../../lib/causes.js"
import { h } from "../../lib/dom.js"
import {
  capitalized,
  contained,
  isKnown,
  NOT_MEASURED,
  percentNumber,
  ratio,
  roughHours,
  roundedPercent,
  seconds,
  shape,
  tidy,
  whole,
} from "../../lib/formatting.js"

const MINUS = "\u2212"

/** The strip; `a` and `b` are the API's sides. */
export function compareStats({ a, b, change_s }) {
  return statStrip([slowdown(a, b), stepTime(a, b, change_s), wasted(a, b), lost(a, b), fidelity(a, b)])
}

const isUsable = ({ slowdown, verdict }) => slowdown !== null && verdict !== "low"
const why = ({ not_measured, verdict }) => not_measured ?? (verdict === "low" ? "withheld: low fidelity" : "")
const signed = (value, write) => `${value < 0 ? MINUS : "+"}${write(Math.abs(value))}`

/** A figure of B with its unit, and in the note what A has. */
function cell(label, a, b, read, { write, unit = "", difference = null }) {
  const figure = isUsable(b) ? write(read(b)) : null
  if (figure === null) return { label, note: `B: ${why(b)}` }
  if (!isUsable(a)) return { label, figure, unit, note: `A: ${NOT_MEASURED}, ${why(a)}` }
  const shown = unit ? `${write(read(a))} ${unit}` : write(read(a))
  const text = difference === null ? signed(read(b) - read(a), write) : difference
  return { label, figure, unit, note: `A ${shown}, ${text}` }
}

function slowdown(a, b) {
  return cell("Slowdown", a, b, (side) => side.slowdown, {
    write: ratio,
    difference: signed(b.slowdown - a.slowdown, (value) => value.toFixed(2)),
  })
}

/** Recorded times do not depend on the fidelity of the simulation. */
function stepTime(a, b, change) {
  const label = "Step time"
  if (b.recorded_s === null) return { label, note: `B: ${why(b)}` }
  const [figure, unit] = seconds(b.recorded_s).split(" ")
  if (a.recorded_s === null) return { label, figure, unit, note: `A: ${NOT_MEASURED}, ${why(a)}` }
  const than = change === null ? "not the same work" : `${signed(change, (value) => percentNumber(value))} %`
  return { label, figure, unit, note: `A ${seconds(a.recorded_s)}, ${than}` }
}

function wasted(a, b) {
  return cell("GPU time wasted", a, b, (side) => side.gpu_time_wasted, {
    write: (value) => percentNumber(value),
    unit: "%",
    difference: `${signed(b.gpu_time_wasted - a.gpu_time_wasted, (value) => percentNumber(value))} points`,
  })
}

function lost(a, b) {
  return cell("Lost", a, b, (side) => side.lost_gpu_hours_per_day, {
    write: roughHours,
    unit: "GPU-h per day",
  })
}

function fidelity(a, b) {
  const off = ({ discrepancy }) =>
    discrepancy === null ? NOT_MEASURED : discrepancy < 0.0005 ? "<0.1" : percentNumber(discrepancy)
  if (b.discrepancy === null) return { label: "Fidelity", note: `B: ${why(b)}` }
  const isLow = b.verdict === "low"
  return {
    label: "Fidelity",
    figure: off(b),
    unit: "% off",
    note: `${isLow ? "low" : "good"}, limit 5 %; A ${off(a)}${a.discrepancy === null ? "" : " %"}`,
    noteMark: isLow ? "low-fidelity" : "healthy",
  }
}

// Persistence of a cause in words.
const LASTING = {
  transient: ", in some of the steps",
  chronic: ", in most steps",
  rotating: ", a different one each time",
  progressive: ", growing",
}
const CHANGES = { new: "New on B", same: "On both", gone: "Gone from A" }

/** The card of causes; `sides` say whether each could be judged. */
export function causesCard({ causes, a, b }) {
  const kinds = Object.keys(CHANGES).filter((kind) => causes.some(({ change }) => change === kind))
  const unknown = [
    ["A", a],
    ["B", b],
  ].filter(([, side]) => side.not_measured ?? (side.verdict === "low" ? "low" : null))
  const section = (kind) => {
    const changed = causes.filter(({ change }) => change === kind)
    const keys = keysOf(changed.map(({ finding }) => finding))
    const numStages = (kind === "gone" ? a : b).shape.pp_size
    return h(
      "div",
      { "data-key": kind, class: "changed" },
      h("h3", {}, CHANGES[kind]),
      h(
        "ol",
        {},
        changed.map((row, at) => cause(row, keys[at], numStages)),
      ),
    )
  }
  return h(
    "section",
    { class: "card causes", "data-key": "causes", "aria-label": "Causes" },
    h("header", {}, h("h2", {}, "Causes"), h("span", { class: "explanation" }, "B against A")),
    unknown.map(([letter, side]) =>
      h(
        "p",
        { class: "quiet" },
        tidy(`${letter}: ${side.not_measured ?? "causes are withheld where fidelity is low"}.`),
      ),
    ),
    kinds.length ? kinds.map(section) : unknown.length === 0 && h("p", {}, "No cause was found on either side."),
  )
}

function cause({ change, finding, before }, key, numStages) {
  const where = culpritWords(finding.culprits)
  const was = before && before.cost !== null ? `, ${percent(before.cost)} on A` : ""
  const cost =
    finding.cost === null
      ? "cost unknown"
      : `${percent(finding.cost)} of the GPU time${change === "gone" ? " on A" : ""}${was}`
  return h(
    "li",
    { "data-key": key },
    h(
      "b",
      {},
      term(causeName(finding.cause, isOfLastStage(finding.culprits, { numStages })), finding.cause),
      where && `: ${where}`,
    ),
    h("p", {}, tidy(cost)),
    change !== "gone" && h("p", { class: "quiet" }, since(finding)),
  )
}

function since(finding) {
  const { onset_step, onset_by_step, end_step, persistence } = finding
  if (isKnown(onset_step) || isKnown(end_step) || isKnown(onset_by_step)) {
    const [first, ...rest] = onsetWords(finding)
    return [capitalized(first), ...rest, isKnown(end_step) ? "." : `${LASTING[persistence] ?? ""}.`]
  }
  return `Since before recording began${LASTING[persistence] ?? ""}.`
}

const percent = (share) => `${roundedPercent(share)} %`

/** The table of both sides: sizes, slowest worker, what fixing would win back. */
export function sidesCard({ a, b }) {
  const rows = [
    ["Steps", stepsOf],
    ["Shape", ({ shape: sizes }) => shape(sizes)],
    ["GPUs", ({ gpus }) => whole(gpus)],
    ["Slowest worker", worst],
    ["Won back by 3 % of workers", ({ m_w }) => share(m_w)],
    ["Won back by the last stage", ({ m_s, shape: { pp_size } }) => (pp_size === 1 ? "one stage" : share(m_s))],
  ]
  return h(
    "section",
    { class: "card sides", "data-key": "sides", "aria-label": "Side by side" },
    h("header", {}, h("h2", {}, "Side by side")),
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {}, h("span", { class: "unseen" }, "Figure")),
          [
            ["A", a],
            ["B", b],
          ].map(([letter, side]) => h("th", { scope: "col" }, letter, h("small", {}, contained(side.name)))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([label, read]) =>
          h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, read(a)), h("td", {}, read(b))),
        ),
      ),
    ),
  )
}

function stepsOf({ first_step, last_step, num_steps, epoch, job_id, window }) {
  if (first_step === null) return "none"
  const text = `${whole(first_step)}${last_step > first_step ? ` to ${whole(last_step)}` : ""}`
  return [
    h("a", { href: `/jobs/${encodeURIComponent(job_id)}?window=${encodeURIComponent(window)}` }, text),
    h("small", {}, `${whole(num_steps)} recorded, run ${whole(epoch)}`),
  ]
}

function worst({ worst: found, job_id, window, verdict }) {
  if (!found || verdict === "low") return h("span", { class: "quiet" }, found ? "withheld" : NOT_MEASURED)
  return [
    h("a", { href: workerHref({ base: `/jobs/${encodeURIComponent(job_id)}`, window }, found) }, workerName(found)),
    h(
      "small",
      {},
      `${ratio(found.slowdown)}`,
      found.host && [" on ", h("a", { href: hostHref(found.host) }, contained(found.host))],
    ),
  ]
}

const share = (value) => (value === null ? h("span", { class: "quiet" }, NOT_MEASURED) : tidy(percent(value)))
