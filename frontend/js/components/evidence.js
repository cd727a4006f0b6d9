/** A finding's evidence in words: what each figure is, in what unit, and against whom. */

import { contained, optypeName, percentNumber, ratio, seconds, tidy, whole } from "../words.js"

const MAX_PLACES = 8

const times = (value) => ratio(value)
const percent = (value) => tidy(`${percentNumber(value, Math.abs(value) >= 0.0995 ? 0 : 1)} %`)
const two = (value) => value.toFixed(2)
const unit = (name) => (value) => `${whole(value)} ${name}`
const yes = (words) => (value) => (value ? words : null)
const list = (write) => (values) => some(values.map(write))
const worker = ([dp, stage]) => `dp ${whole(dp)}, stage ${whole(stage)}`

/** Every key of every cause (docs/diagnosis.md): its words and how its value is written. */
const ROWS = {
  share_of_loss: ["Share of the loss", percent],
  cost_once_others_are_mended: ["Costs once the others are mended", (value) => `${percent(value)} of the GPU time`],
  workers: ["Workers", (values) => some(values.map(worker), "; ")],
  num_workers: ["Number of workers", whole],
  ranks: ["Ranks", list(whole)],
  stages: ["Stages", list(whole)],
  hosts: ["Hosts", list(contained)],
  optypes: ["Operations", list(optypeName)],
  steps: ["Seen in steps", ranges],
  slowdown_against_peers: ["Computes longer than its peers", times],
  slowdown_against_itself: ["Computes longer than before", times],
  slowdown_against_stages: ["Computes longer than the other stages", times],
  slowdowns_against_peers: ["Each, against its peers", list(times)],
  slowdowns_against_itself: ["Each, against before", list(times)],
  forward_slowdown: ["Forward, against the others", times],
  backward_slowdown: ["Backward, against the others", times],
  standard_errors: ["Away from chance", (value) => `${value >= 100 ? whole(value) : value.toFixed(1)} standard errors`],
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
  coefficient_of_variation: ["A worker's computations vary by", (value) => `${percent(value)} of their mean`],
  arrivals: ["The others wait for it", waits],
  late_because: ["Late because of", (reason) => REASONS[reason] ?? contained(reason)],
  pauses: ["Pauses", whole],
  mean_pause_s: ["Mean pause", seconds],
  longest_pause_s: ["Longest pause", seconds],
  planned: ["All workers pause together", (value) => (value ? "yes, as planned" : "no")],
  every_steps: ["Pauses come", (value) => (value === 1 ? "every step" : `every ${whole(value)} steps`)],
  told_by_client: ["Told by the client", (value) => (typeof value === "number" ? whole(value) : value ? "yes" : "no")],
  times_as_long: ["Transfers, against other links", times],
  share_slow: ["Transfers that are slow", percent],
  only_collectives: ["Seen in", yes("collectives only")],
  interrupted: ["Computations interrupted", whole],
  share_interrupted: ["Share of them interrupted", percent],
  usual_share: ["Share that is usual", percent],
  mean_stop_s: ["Mean stop", seconds],
  seconds_lost: ["Time lost in stops", seconds],
  mean_wait_s: ["Mean wait for data", seconds],
  longest_wait_s: ["Longest wait for data", seconds],
  steps_missed: ["Last steps without its report", whole],
  ratio: ["Longer than before", times],
  compute_ratio: ["Computations, against before", times],
  optimizer_ratio: ["Optimizer, against before", times],
  transfer_ratio: ["Transfers, against before", times],
  num_steps_before: ["Steps known before", whole],
  step_time_before_s: ["Step before", seconds],
  step_time_after_s: ["Step after", seconds],
  compute_before_s: ["Typical computation before", seconds],
  compute_after_s: ["Typical computation after", seconds],
  slowdown: ["Slowdown of the job", times],
}

const REASONS = { "data-wait": "waits for data", gc: "garbage collection", "unknown host work": "work of its host that is not recorded" }

const LASTING = { transient: "a few steps", chronic: "most steps", rotating: "someone else each time", progressive: "it grows" }

/** Every key of an evidence that has words here. */
export const KNOWN_KEYS = Object.keys(ROWS)

/** Rows `[label, value]` of a finding, the most telling first; what is not known is left out. */
export function evidenceRows({ evidence, onset_step, persistence }) {
  const since = onset_step === null || onset_step === undefined ? "before what is known of the job" : `step ${whole(onset_step)}`
  const known = KNOWN_KEYS.filter((name) => isTold(evidence[name]))
  const others = Object.keys(evidence).filter((name) => !(name in ROWS) && isTold(evidence[name]))
  return [
    ["Since", since],
    LASTING[persistence] && ["Lasts", LASTING[persistence]],
    ...known.map((name) => [ROWS[name][0], ROWS[name][1](evidence[name])]),
    // A newer server may know more than this page.
    ...others.map((name) => [plain(name), JSON.stringify(evidence[name])]),
  ].filter((row) => row && row[1] !== null)
}

const isTold = (value) => value !== null && value !== undefined && !(Array.isArray(value) && value.length === 0)

const plain = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ")

function some(texts, between = ", ") {
  const more = texts.length - MAX_PLACES
  return texts.slice(0, MAX_PLACES).join(between) + (more > 0 ? ` and ${whole(more)} more` : "")
}

/** What arrivals say of a culprit: how long, how often, and how much of that is its own doing. */
function waits({ waited_for_s, share, late_share, steps_late, own_delay_s }) {
  const own = own_delay_s === null ? "" : `; its own delay is ${seconds(Math.max(0, own_delay_s))}`
  return `${seconds(waited_for_s)} a step, ${percent(share)} of it; late to ${percent(late_share)} of its collectives, in ${percent(steps_late)} of the steps${own}`
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
