/** The findings card: causes, culprits, confidence, evidence; and the card of causes that were ruled out. */

import { causeName } from "../lib/causes.js"
import { h } from "../lib/dom.js"
import {
  capitalized,
  confidenceWords,
  contained,
  isKnown,
  optypeName,
  percentNumber,
  ratio,
  roundedPercent,
  seconds,
  tidy,
  whole,
} from "../lib/formatting.js"
import { shortDuration, sinceWhen, timed } from "../lib/times.js"
import { culpritLinks, culpritWords, keysOf } from "./culprits.js"
import { term } from "./definition.js"
import { lowFidelityWords, observed, waitRemarks } from "./waits.js"

const BARS = { high: 3, medium: 2, low: 1 }
const OTHERS = {
  "slow-worker": (evidence) => ("slowdown_against_itself" in evidence ? "what it was before" : "its peers"),
  "stage-imbalance": () => "the other stages",
}
const LOOK_CLOSER = 1.03
const OVER_LOSS =
  "Costs are against peers, the loss is against the mean of all workers. " +
  "The fault itself raises that mean, so a cost may exceed the loss."
// Closer than this, a cost and the loss are written the same.
const SAME = 0.0005

/**
 * The card; `result` is the window's object.
 *
 * `page` has the job's base address, its window and number of stages; and in `silence` what is
 * shown first, where workers have become silent since.
 */
export function findingsCard(result, page) {
  const found = result.findings ?? []
  const keys = keysOf(found)
  return h(
    "section",
    { class: "card findings", "data-key": "findings", "aria-label": "Findings" },
    h(
      "header",
      {},
      h("h2", {}, "Findings"),
      found.length > 1 && h("span", { class: "explanation" }, "causes may overlap"),
    ),
    page.silence && h("p", { class: "since" }, page.silence),
    found.length
      ? h(
          "ol",
          {},
          found.map((each, at) => finding(each, { ...page, key: keys[at], numSteps: result.steps?.length })),
        )
      : h("p", { class: "none" }, nothing(result, page)),
    exceedsLoss(found[0], result) && overLoss(found[0], result),
    [...new Set([...waitRemarks(result), ...observed(result)])].map((remark) =>
      h("p", { class: "unexplained" }, tidy(remark)),
    ),
  )
}

/** Why the leading cause costs more than counts as lost: one sentence, behind a question. */
function overLoss({ cause }, { slowdown }) {
  const own = cause === "uniform-slowdown" && slowdown
  return h(
    "details",
    { class: "over-loss", "data-key": "over-loss" },
    h("summary", {}, "Why more than the GPU time wasted?"),
    h("p", {}, own ? tidy(againstItself(slowdown)) : OVER_LOSS),
  )
}

const againstItself = (slowdown) =>
  "This cost is against the job\u2019s own earlier pace. All workers slowed down alike, and the ideal with them: " +
  `against it the job runs at ${ratio(slowdown)}.`

const exceedsLoss = (first, { gpu_time_wasted }) =>
  Number.isFinite(first?.cost) && Number.isFinite(gpu_time_wasted) && first.cost > gpu_time_wasted + SAME

function nothing(result, { silence, isStalled }) {
  const { findings, ruled_out, fidelity, slowdown } = result
  if (findings && slowdown >= LOOK_CLOSER)
    return "No cause was found. Causes that could not be decided are listed under Details."
  if (findings && waitRemarks(result).length) return "No known cause matches."
  if (findings && isStalled) return "No cause was found in the steps before the stall."
  if (findings) return silence ? "No cause was found before that." : "Nothing stands out."
  if (result.wait_coverage === 0) return lowFidelityWords(result)
  if (fidelity?.verdict === "low") return "Withheld: low fidelity. Naming a cause would be a guess."
  return ruled_out ? "Undecided: see Details." : "Not analysed: no step of this window is complete."
}

// Annotations that a finding names.
const MAX_AFTER = 2

function finding(found, page) {
  const { cause, culprits, confidence, evidence, sentence, seen_in } = found
  const where = culpritWords(culprits)
  const isHidden = Number.isFinite(evidence.cost_after_other_repairs ?? evidence.cost_once_others_are_mended)
  return h(
    "li",
    { "data-key": page.key },
    share(found),
    h(
      "div",
      { class: "why" },
      h(
        "h3",
        {},
        isHidden && "Hidden by the causes above: ",
        term(causeName(cause, isOfLastStage(culprits, page)), cause),
        where && `: ${where}`,
      ),
      h("p", {}, against(found, page) ?? varying(found) ?? timed(said(sentence))),
      (found.after ?? [])
        .slice(0, MAX_AFTER)
        .map(({ sentence: after }) => h("p", { class: "quiet" }, contained(after))),
      seen_in &&
        seen_in.windows < seen_in.of &&
        h("p", { class: "quiet" }, `Seen in ${seen_in.windows} of ${seen_in.of} windows.`),
    ),
    h(
      "div",
      { class: "more" },
      h(
        "div",
        { class: "sure" },
        h("span", {}, confidenceBars(confidence)),
        culpritLinks(culprits, page),
        h("a", { href: `/docs/on-call#${cause}` }, "Runbook"),
      ),
      details(found),
    ),
  )
}

/** How much longer, compared with what, since when; the title names the culprit, the bar the cost. */
function against(found, { numSteps }) {
  const { cause, evidence, culprits } = found
  const others = OTHERS[cause]?.(evidence)
  const { forward_slowdown: forward, backward_slowdown: backward } = evidence
  if (!others || !Number.isFinite(forward) || !Number.isFinite(backward)) return null
  const whose = culprits.length > 1 ? "The slowest of them: forward" : "Forward"
  return [`${whose} ${ratio(forward)} and backward ${ratio(backward)} ${others}, `, onsetWords(found, numSteps), "."]
}

/** Onset and end with their times, else in which of the result's steps it shows; children for `h`. */
export function onsetWords(found, numSteps) {
  const { onset_step, onset_by_step, end_step, onset_at, ended_at, lasted_s } = found
  const began = isKnown(onset_step) && { step: onset_step, at: onset_at }
  const ended = isKnown(end_step) && sinceWhen({ step: end_step, at: ended_at })
  const took = onset_at && ended_at && isKnown(lasted_s) ? [", ", shortDuration(lasted_s)] : []
  const before = isKnown(onset_by_step) && `step ${whole(onset_by_step)} or before`
  if (ended) {
    if (began) return ["from ", sinceWhen(began), " to ", ended, took]
    return before ? [`from ${before} to `, ended] : ["until ", ended]
  }
  if (began) return ["since ", sinceWhen({ ...began, lasted_s })]
  return [stepsWords(found, numSteps), before && `, since ${before}`]
}

/** "In every recorded step" only where it is so. */
function stepsWords({ persistence, evidence, seen_in }, numSteps) {
  const isInSome = persistence === "transient" || seen_in?.windows < seen_in?.of
  if (isInSome) return "in some of the recorded steps"
  // Of several windows, the evidence has the steps of the last one.
  const shown = seen_in ? null : evidence?.steps?.length
  return shown && numSteps && shown < numSteps
    ? `in ${whole(shown)} of ${whole(numSteps)} recorded steps`
    : "in every recorded step"
}

/** The evidence of uneven sequence lengths; title and bar have the rest. */
function varying({ cause, evidence }) {
  const {
    coefficient_of_variation: variation,
    pearson_r,
    pearson_r_of_replicas,
    pearson_r_with_lengths_squared: ofLengths,
  } = evidence
  if (cause !== "sequence-imbalance" || !Number.isFinite(variation)) return null
  const r = Math.max(pearson_r ?? 0, pearson_r_of_replicas ?? 0).toFixed(2)
  const lengths = Number.isFinite(ofLengths)
    ? `, and with the squared lengths of their sequences (r ${ofLengths.toFixed(2)})`
    : ", as long and short sequences make them"
  return tidy(
    `Computations of one worker vary by ${percentNumber(variation, 0)} % of their mean, ` +
      `forward and backward together (r ${r})${lengths}.`,
  )
}

/** The most costly finding; a missing worker only where nothing else was found. */
export function leadingFinding(findings) {
  return findings?.find(({ cause }) => cause !== "silent-worker") ?? findings?.[0]
}

/** Whether the only culprit is the job's last stage. */
export function isOfLastStage(culprits, { numStages }) {
  return numStages > 1 && culprits.length === 1 && culprits[0].stage === numStages - 1
}

/** Its cost as a share of the GPU time, as in the headline; a range where replay and waits disagree. */
function share({ cost, cost_range }) {
  if (cost === null || cost === undefined)
    return h("div", { class: "share" }, h("span", { class: "quiet" }, "no figure"))
  const width = Math.min(100, Math.max(0, 100 * cost))
  return h(
    "div",
    { class: "share" },
    h(
      "b",
      { class: "number" },
      tidy(`${cost_range ? cost_range.map(roundedPercent).join(" to ") : roundedPercent(cost)} %`),
    ),
    h("span", {}, "of GPU time"),
    h("i", { class: "bar" }, h("i", { style: `width: ${width.toFixed(1)}%` })),
  )
}

/** Three bars, and words with the number, as "high confidence, 95 %". */
export function confidenceBars(confidence) {
  const words = confidenceWords(confidence)
  const steps = BARS[words.split(" ")[0]]
  const bar = (at) =>
    h("rect", {
      x: 5 * at,
      y: 8 - 4 * at,
      width: 4,
      height: 4 + 4 * at,
      fill: "currentColor",
      opacity: at < steps ? 1 : 0.2,
    })
  return [
    h("svg", { class: "confidence", viewBox: "0 0 14 12", "aria-hidden": "true" }, [0, 1, 2].map(bar)),
    tidy(words),
  ]
}

function details(found) {
  return h(
    "details",
    {},
    h("summary", {}, "Evidence"),
    h(
      "dl",
      { class: "facts" },
      evidenceRows(found).map(([name, value]) => [h("dt", {}, tidy(name)), h("dd", {}, value)]),
    ),
  )
}

/** The card of causes that were ruled out or could not be decided; null where there are none. */
export function ruledOutCard({ ruled_out }, { silence }) {
  const causes = (ruled_out ?? []).filter(({ cause }) => !silence || cause !== "silent-worker")
  if (!causes.length) return null
  const list = (title, chosen) =>
    chosen.length > 0 && [
      h("h3", {}, title),
      h(
        "dl",
        {},
        byReason(chosen).map(([names, reason]) => h("div", {}, h("dt", {}, `${names}: `), h("dd", {}, said(reason)))),
      ),
    ]
  return h(
    "section",
    { class: "card ruled-out", "data-key": "ruled-out", "aria-label": "Other causes" },
    h("header", {}, h("h2", {}, "Other causes")),
    list(
      "Ruled out",
      causes.filter((each) => !each.insufficient_evidence),
    ),
    list(
      "Undecided",
      causes.filter((each) => each.insufficient_evidence),
    ),
  )
}

/** Causes with the same reason as one: `[names, reason]`. */
function byReason(causes) {
  return [...Map.groupBy(causes, ({ reason }) => reason)].map(([reason, own]) => [
    own.map(({ cause }, at) => (at ? lowered(causeName(cause)) : causeName(cause))).join(", "),
    reason,
  ])
}

const lowered = (words) => words.charAt(0).toLowerCase() + words.slice(1)

/** A sentence of the server, with spaces that never break and the sign for times. */
function said(sentence) {
  const words = tidy(contained(sentence)).replaceAll(/([ (]\d[\d,]*(?:\.\d+)?)x(?= )/g, "$1\u00d7")
  return words
    .replace(/^(every|all|both|the|loads|ranks?|stage|steps|no|a|transfers|some|collectives|simulated) /, capitalized)
    .replace(/([^.])$/, "$1.")
}

const MAX_PLACES = 8

const times = (value) => ratio(value)
const percent = (value) => tidy(`${roundedPercent(value)} %`)
const two = (value) => value.toFixed(2)
const unit = (name) => (value) => `${whole(value)} ${name}`
const yes = (words) => (value) => (value ? words : null)
const list = (write) => (values) => some(values.map(write))
const worker = ([dp, stage]) => `dp ${whole(dp)}, stage ${whole(stage)}`

/** Every key of every cause (docs/diagnosis.md): its words and how its value is written. */
const ROWS = {
  share_of_loss: ["Share of the loss", percent],
  cost_after_other_repairs: ["Cost once the others are fixed", (value) => `${percent(value)} of the GPU time`],
  workers: ["Workers", (values) => some(values.map(worker), "; ")],
  num_workers: ["Number of workers", whole],
  ranks: ["Ranks", list(whole)],
  stages: ["Stages", list(whole)],
  dp_ranks: ["dp ranks", list(whole)],
  hosts: ["Hosts", list(contained)],
  optypes: ["Operations", list(optypeName)],
  steps: ["Seen in steps", ranges],
  slowdown_against_peers: ["Computes longer than its peers", times],
  slowdown_against_itself: ["Computes longer than before", times],
  slowdown_against_stages: ["Computes longer than the other stages", times],
  slowdown_against_blocks: ["Computes longer than the other blocks", times],
  slowdown_of_hot: ["Popular experts, against even loads", times],
  microbatches: ["Long micro-batches", list(whole)],
  host_sets_pace: ["Its host sets the pace", (value) => (value === null ? "not known" : value ? "yes" : "no")],
  slowdown_in_computations: ["Computations, against the other stages", times],
  slowdown_for_computations: ["This operation, for what the stage computes", times],
  slowdowns_against_peers: ["Each, against its peers", list(times)],
  slowdowns_against_itself: ["Each, against before", list(times)],
  forward_slowdown: ["Forward, against the others", times],
  backward_slowdown: ["Backward, against the others", times],
  standard_errors: ["Significance", (value) => `${value >= 100 ? whole(value) : value.toFixed(1)} standard errors`],
  m_w: ["Won back by the slowest 3 % of workers", percent],
  m_s: ["Won back by the last stage", percent],
  share_won_back: ["Won back by this stage", percent],
  sm_clock_mhz: ["GPU clock", unit("MHz")],
  sm_clock_mhz_of_peers: ["GPU clock of its peers", unit("MHz")],
  temperature_c: ["GPU temperature", unit("\u00b0C")],
  temperature_c_of_peers: ["GPU temperature of its peers", unit("\u00b0C")],
  power_w: ["GPU power", unit("W")],
  power_w_of_peers: ["GPU power of its peers", unit("W")],
  xid: ["Last error of the GPU (XID)", whole],
  pearson_r: ["Forward goes with backward, in a worker", (value) => `r ${two(value)}`],
  pearson_r_of_replicas: ["Forward goes with backward, in a replica", (value) => `r ${two(value)}`],
  pearson_r_between_stages: ["The same micro-batch on other stages", (value) => `r ${two(value)}`],
  pearson_r_with_lengths_squared: ["Time goes with squared lengths", (value) => `r ${two(value)}`],
  variance_within_steps: ["Variance among the micro-batches of a step", percent],
  coefficient_of_variation: ["A worker's computations vary by", (value) => `${percent(value)} of their mean`],
  arrivals: ["Other ranks wait for it", waits],
  late_because: ["Late because of", (reason) => REASONS[reason] ?? contained(reason)],
  pauses: ["Pauses", whole],
  mean_pause_s: ["Mean pause", seconds],
  longest_pause_s: ["Longest pause", seconds],
  planned: ["All workers pause together", (value) => (value ? "yes, as planned" : "no")],
  every_steps: ["Pauses come", (value) => (value === 1 ? "every step" : `every ${whole(value)} steps`)],
  reported_by_client: [
    "Reported by the client",
    (value) => (typeof value === "number" ? whole(value) : value ? "yes" : "no"),
  ],
  times_as_long: ["Transfers, against other links", times],
  share_slow: ["Transfers that are slow", percent],
  only_collectives: ["Seen in", yes("collectives only")],
  interrupted: ["Computations interrupted", whole],
  share_interrupted: ["Share of them interrupted", percent],
  usual_share: ["Usual share", percent],
  mean_stop_s: ["Mean stop", seconds],
  seconds_lost: ["Time lost in stops", seconds],
  stops: ["Stops", whole],
  longest_stop_s: ["Longest stop", seconds],
  other_operations_late: ["Other operations start late, too", (value) => (value ? "yes" : "no")],
  load_spread: ["Loads of the ranks vary by", percent],
  block_variance_ratio: ["A block's mean varies, against independent ranks", two],
  pearson_r_with_tokens: ["Time goes with tokens", (value) => `r ${two(value)}`],
  mean_wait_s: ["Mean wait for data", seconds],
  longest_wait_s: ["Longest wait for data", seconds],
  steps_missed: ["Last steps without its data", whole],
  ratio: ["Longer than before", times],
  compute_ratio: ["Computations, against before", times],
  optimizer_ratio: ["Optimizer, against before", times],
  transfer_ratio: ["Transfers, against before", times],
  num_steps_before: ["Steps before", whole],
  step_time_before_s: ["Step time before", seconds],
  step_time_after_s: ["Step time after", seconds],
  compute_before_s: ["Typical computation before", seconds],
  compute_after_s: ["Typical computation after", seconds],
  slowdown: ["Slowdown of the job", times],
  steps_near_record: ["Steps that the replay explains", whole],
}

const REASONS = {
  "data-wait": "waits for data",
  gc: "garbage collection",
  "unknown host work": "host work that is not recorded",
}

const LASTING = {
  transient: "some of the steps",
  chronic: "most steps",
  rotating: "a different one each time",
  progressive: "growing",
}

const BASES = {
  recorded: "rows of the recording",
  concluded: "timings: no row says it",
  "not-recorded": "what was not recorded",
}

// Names of release 0.1.0, beside which the evidence has the new ones.
const OLD_KEYS = new Set(["cost_once_others_are_mended"])

/** Every key of an evidence that has words here. */
export const KNOWN_KEYS = Object.keys(ROWS)

/** Rows `[label, value]` of a finding, the most important first; unknown values are skipped. */
export function evidenceRows(found) {
  const { evidence, onset_step, onset_by_step, end_step, onset_at, ended_at, lasted_s, persistence } = found
  const lasted = isKnown(end_step) ? {} : { lasted_s }
  const since = isKnown(onset_step)
    ? sinceWhen({ step: onset_step, at: onset_at, ...lasted })
    : isKnown(onset_by_step)
      ? `step ${whole(onset_by_step)} or before`
      : "before recording began"
  const known = KNOWN_KEYS.filter((name) => hasValue(evidence[name]))
  const others = Object.keys(evidence).filter(
    (name) => !(name in ROWS) && !OLD_KEYS.has(name) && hasValue(evidence[name]),
  )
  return [
    ["Since", since],
    isKnown(end_step) && ["Until", sinceWhen({ step: end_step, at: ended_at })],
    LASTING[persistence] && ["Lasts", LASTING[persistence]],
    BASES[found.basis] && ["Rests on", BASES[found.basis]],
    ...known.map((name) => [ROWS[name][0], ROWS[name][1](evidence[name])]),
    // A newer server may know more than this page.
    ...others.map((name) => [plain(name), JSON.stringify(evidence[name])]),
  ].filter((row) => row && row[1] !== null)
}

const hasValue = (value) => isKnown(value) && !(Array.isArray(value) && value.length === 0)

const plain = (name) => capitalized(name.replaceAll("_", " "))

function some(texts, between = ", ") {
  const more = texts.length - MAX_PLACES
  return texts.slice(0, MAX_PLACES).join(between) + (more > 0 ? ` and ${whole(more)} more` : "")
}

/** The arrivals of a culprit: how long and how often others wait for it, and its own delay. */
function waits({ waited_for_s, share, late_share, steps_late, own_delay_s }) {
  const own = own_delay_s === null ? "" : `; its own delay is ${seconds(Math.max(0, own_delay_s))}`
  const late = `late to ${percent(late_share)} of its collectives, in ${percent(steps_late)} of the steps`
  return `${seconds(waited_for_s)} per step, ${percent(share)} of it; ${late}${own}`
}

/** Steps as people write them: 3 to 7, 9. */
function ranges(steps) {
  const found = []
  for (const step of steps) {
    if (found.length && step === found.at(-1)[1] + 1) found.at(-1)[1] = step
    else found.push([step, step])
  }
  return some(found.map(([first, last]) => (last > first ? `${whole(first)} to ${whole(last)}` : whole(first))))
}
