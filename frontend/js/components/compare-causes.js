/** Which causes are new, which are gone, and which were there before; and the slowest workers. */

import { h } from "../dom.js"
import { causeName, contained, NOT_MEASURED, percentNumber, ratio, shape, tidy, whole } from "../words.js"
import { culpritWords, hostHref, workerHref, workerName } from "./culprits.js"
import { isOfLastStage } from "./findings.js"

// How a cause lasts, after since when.
const LASTING = { transient: ", in a few steps", chronic: ", in most steps", rotating: ", someone else each time", progressive: ", and it grows" }
const CHANGES = { new: "New on B", same: "On both", gone: "Gone from A" }

/** The card of causes; `sides` say whether each could be judged. */
export function causesCard({ causes, a, b }) {
  const kinds = Object.keys(CHANGES).filter((kind) => causes.some(({ change }) => change === kind))
  const untold = [["A", a], ["B", b]].filter(([, side]) => side.not_measured ?? (side.verdict === "low" ? "low" : null))
  const section = (kind) => h("div", { "data-key": kind, class: "changed" }, h("h3", {}, CHANGES[kind]), h("ol", {}, causes.filter(({ change }) => change === kind).map((each) => cause(each, (kind === "gone" ? a : b).shape.pp_size))))
  return h(
    "section",
    { class: "card causes", "data-key": "causes", "aria-label": "Causes" },
    h("header", {}, h("h2", {}, "Causes"), h("span", { class: "explanation" }, "B against A")),
    untold.map(([letter, side]) => h("p", { class: "quiet" }, tidy(`${letter}: ${side.not_measured ?? "causes are withheld where fidelity is low"}.`))),
    kinds.length ? kinds.map(section) : untold.length === 0 && h("p", {}, "Nothing stands out on either side."),
  )
}

function cause({ change, finding, before }, numStages) {
  const where = culpritWords(finding.culprits)
  const was = before && before.cost !== null ? `, ${percent(before.cost)} on A` : ""
  const cost = finding.cost === null ? "no figure for its cost" : `${percent(finding.cost)} of the GPU time${change === "gone" ? " on A" : ""}${was}`
  return h(
    "li",
    { "data-key": `${finding.cause} ${where}` },
    h("b", {}, causeName(finding.cause, isOfLastStage(finding.culprits, { numStages })), where && `: ${where}`),
    h("p", {}, tidy(cost)),
    change !== "gone" && h("p", { class: "quiet" }, tidy(since(finding))),
  )
}

function since({ onset_step, persistence }) {
  const from = onset_step === null ? "before what is known" : `step ${whole(onset_step)}`
  return `Since ${from}${LASTING[persistence] ?? ""}.`
}

const percent = (share) => `${percentNumber(share, Math.abs(share) >= 0.0995 ? 0 : 1)} %`

/** The card that holds what else differs: sizes, slowest worker, what fixing would win back. */
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
      h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "unseen" }, "Figure")), [["A", a], ["B", b]].map(([letter, side]) => h("th", { scope: "col" }, letter, h("small", {}, contained(side.name)))))),
      h("tbody", {}, rows.map(([label, read]) => h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, read(a)), h("td", {}, read(b))))),
    ),
  )
}

function stepsOf({ first_step, last_step, num_steps, epoch, job_id, window }) {
  if (first_step === null) return "none"
  const text = `${whole(first_step)}${last_step > first_step ? ` to ${whole(last_step)}` : ""}`
  return [h("a", { href: `/jobs/${encodeURIComponent(job_id)}?window=${encodeURIComponent(window)}` }, text), h("small", {}, `${whole(num_steps)} recorded, run ${whole(epoch)}`)]
}

function worst({ worst: found, job_id, window, verdict }) {
  if (!found || verdict === "low") return h("span", { class: "quiet" }, found ? "withheld" : NOT_MEASURED)
  return [
    h("a", { href: workerHref({ base: `/jobs/${encodeURIComponent(job_id)}`, window }, found) }, workerName(found)),
    h("small", {}, `${ratio(found.slowdown)}`, found.host && [" on ", h("a", { href: hostHref(found.host) }, contained(found.host))]),
  ]
}

const share = (value) => (value === null ? h("span", { class: "quiet" }, NOT_MEASURED) : tidy(percent(value)))
