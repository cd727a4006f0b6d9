/** What is wrong, who is to blame, how sure that is, and what was looked at and ruled out. */

import { h } from "../dom.js"
import { causeName, contained, percentNumber, ratio, tidy, whole } from "../words.js"
import { culpritLinks, culpritWords } from "./culprits.js"
import { evidenceRows } from "./evidence.js"
import { waitRemarks } from "./waits.js"

const CONFIDENCES = [
  [0.8, 3, "high confidence"],
  [0.6, 2, "medium confidence"],
  [0, 1, "low confidence"],
]
const OTHERS = {
  "slow-worker": (evidence) => ("slowdown_against_itself" in evidence ? "what it was before" : "its peers"),
  "stage-imbalance": () => "the other stages",
}
const LOOK_CLOSER = 1.03
const OVER_LOSS = "Costs are against peers. The ideal is one mean over all workers, which the fault itself raises, so a cost may exceed the loss."
// Closer than this, a cost and the loss are written the same.
const SAME = 0.0005

/**
 * The card; `result` is the window's object.
 *
 * `page` has the job's base address, its window and number of stages; and in `silence` what is
 * said first, where some workers have fallen silent since.
 */
export function findingsCard(result, page) {
  const { findings, ruled_out } = result
  const found = findings ?? []
  return h(
    "section",
    { class: "card findings", "data-key": "findings", "aria-label": "Findings" },
    h("header", {}, h("h2", {}, "Findings"), found.length > 1 && h("span", { class: "explanation" }, "causes may overlap")),
    page.silence && h("p", { class: "since" }, page.silence),
    exceedsLoss(found[0], result) && h("p", { class: "since" }, OVER_LOSS),
    found.length ? h("ol", {}, found.map((each) => finding(each, page))) : h("p", { class: "none" }, nothing(result, page)),
    waitRemarks(result).map((remark) => h("p", { class: "unexplained" }, tidy(remark))),
    ruledOut((ruled_out ?? []).filter(({ cause }) => !page.silence || cause !== "silent-worker")),
  )
}

const exceedsLoss = (first, { gpu_time_wasted }) => Number.isFinite(first?.cost) && Number.isFinite(gpu_time_wasted) && first.cost > gpu_time_wasted + SAME

function nothing(result, { silence }) {
  const { findings, ruled_out, fidelity, slowdown } = result
  if (findings && slowdown >= LOOK_CLOSER) return "No cause can be named. What it may be, and cannot be told, is below."
  if (findings && waitRemarks(result).length) return "No known cause fits."
  if (findings) return silence ? "Until then no cause was found." : "Nothing stands out."
  if (fidelity?.verdict === "low") return "Withheld: low fidelity. Naming a cause would be a guess."
  return ruled_out ? "Nothing can be told: see below." : "Not looked for: no step of this window was analysed."
}

function finding(found, page) {
  const { cause, culprits, confidence, evidence, sentence, seen_in } = found
  const where = culpritWords(culprits)
  const isHidden = Number.isFinite(evidence.cost_once_others_are_mended)
  return h(
    "li",
    { "data-key": `${cause} ${where}` },
    share(found),
    h(
      "div",
      { class: "why" },
      h("h3", {}, isHidden && "Hidden for now: ", causeName(cause, isOfLastStage(culprits, page)), where && `: ${where}`),
      h("p", {}, against(found) ?? varying(found) ?? said(sentence)),
      seen_in && seen_in.windows < seen_in.of && h("p", { class: "quiet" }, `Seen in ${seen_in.windows} of ${seen_in.of} windows.`),
      h("div", { class: "sure" }, h("span", {}, confidenceBars(confidence)), culpritLinks(culprits, page)),
      details(found),
    ),
  )
}

/** How much longer, against whom, since when: the title has who, the bar what it costs. */
function against({ cause, evidence, onset_step, culprits }) {
  const others = OTHERS[cause]?.(evidence)
  const { forward_slowdown: forward, backward_slowdown: backward } = evidence
  if (!others || !Number.isFinite(forward) || !Number.isFinite(backward)) return null
  const whose = culprits.length > 1 ? "The slowest of them: forward" : "Forward"
  const since = onset_step === null ? "in all steps that are known" : `since step ${whole(onset_step)}`
  return `${whose} ${ratio(forward)} and backward ${ratio(backward)} ${others}, ${since}.`
}

/** What shows that it is the sequences and no worker; the title and the bar have the rest. */
function varying({ cause, evidence }) {
  const { coefficient_of_variation: variation, pearson_r, pearson_r_of_replicas, pearson_r_with_lengths_squared: ofLengths } = evidence
  if (cause !== "sequence-imbalance" || !Number.isFinite(variation)) return null
  const r = Math.max(pearson_r ?? 0, pearson_r_of_replicas ?? 0).toFixed(2)
  const lengths = Number.isFinite(ofLengths) ? `, and with the squared lengths of their sequences (r ${ofLengths.toFixed(2)})` : ", as long and short sequences make them"
  return tidy(`Computations of one worker vary by ${percentNumber(variation, 0)} % of their mean, forward and backward together (r ${r})${lengths}.`)
}

/** Whether nobody but the job's last stage is to blame. */
export function isOfLastStage(culprits, { numStages }) {
  return numStages > 1 && culprits.length === 1 && culprits[0].stage === numStages - 1
}

/** What it costs of the GPU time, as the headline says it too; a range where replay and waits disagree. */
function share({ cost, cost_range }) {
  if (cost === null || cost === undefined) return h("div", { class: "share" }, h("span", { class: "quiet" }, "no figure"))
  const width = Math.min(100, Math.max(0, 100 * cost))
  const written = (value) => percentNumber(value, Math.abs(value) >= 0.0995 ? 0 : 1)
  return h(
    "div",
    { class: "share" },
    h("b", { class: "number" }, tidy(`${cost_range ? cost_range.map(written).join(" to ") : written(cost)} %`)),
    h("span", {}, "of GPU time"),
    h("i", { class: "bar" }, h("i", { style: `width: ${width.toFixed(1)}%` })),
  )
}

function confidenceBars(confidence) {
  const [, steps, words] = CONFIDENCES.find(([from]) => confidence >= from)
  const bar = (at) => h("rect", { x: 5 * at, y: 8 - 4 * at, width: 4, height: 4 + 4 * at, fill: "currentColor", opacity: at < steps ? 1 : 0.2 })
  return [h("svg", { class: "confidence", viewBox: "0 0 14 12", "aria-hidden": "true" }, [0, 1, 2].map(bar)), words]
}

function details(found) {
  return h(
    "details",
    {},
    h("summary", {}, "Evidence"),
    h("dl", { class: "facts" }, evidenceRows(found).map(([name, value]) => [h("dt", {}, tidy(name)), h("dd", {}, value)])),
  )
}

function ruledOut(causes) {
  const list = (title, chosen) =>
    chosen.length > 0 && [
      h("h3", {}, title),
      h("dl", {}, byReason(chosen).map(([names, reason]) => h("div", {}, h("dt", {}, `${names}: `), h("dd", {}, said(reason))))),
    ]
  return (
    causes.length > 0 &&
    h(
      "div",
      { class: "ruled-out" },
      list("Looked at and ruled out", causes.filter((each) => !each.insufficient_evidence)),
      list("Cannot be told", causes.filter((each) => each.insufficient_evidence)),
    )
  )
}

/** Causes with the same reason as one: `[names, reason]`. */
function byReason(causes) {
  return [...Map.groupBy(causes, ({ reason }) => reason)].map(([reason, own]) => [own.map(({ cause }, at) => (at ? lowered(causeName(cause)) : causeName(cause))).join(", "), reason])
}

const lowered = (words) => words.charAt(0).toLowerCase() + words.slice(1)

/** A sentence of the server, with spaces that never break and the sign for times. */
function said(sentence) {
  const words = tidy(contained(sentence)).replaceAll(/(\d\.\d+)x(?= )/g, "$1\u00d7")
  return words.replace(/^(every|rank|stage|steps|no|a|transfers|some|collectives|simulated) /, (first) => first.charAt(0).toUpperCase() + first.slice(1)).replace(/([^.])$/, "$1.")
}
