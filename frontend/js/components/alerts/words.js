/** Names and icons of severities and transitions, and alert rules in words. */

import { causeName } from "../../lib/causes.js"
import {
  capitalized,
  contained,
  counted,
  duration,
  optypeName,
  percentNumber,
  ratio,
  seconds,
  tidy,
  whole,
} from "../../lib/formatting.js"
import { timed } from "../../lib/times.js"

/** Icons and names of severities, the most severe first. */
export const SEVERITIES = {
  critical: ["stalled", "Critical"],
  warning: ["straggling", "Warning"],
  info: ["not-analysed", "Info"],
}

/** Icons and names of transitions. */
export const KINDS = {
  firing: ["straggling", "Fired"],
  resolved: ["healthy", "Resolved"],
  pending: ["silent", "Pending"],
  cleared: ["not-analysed", "Cleared"],
  "no-data": ["silent", "No data"],
  "data-again": ["healthy", "Data again"],
  acknowledged: ["finished", "Acknowledged"],
  unacknowledged: ["not-analysed", "Unacknowledged"],
  assigned: ["not-analysed", "Assigned"],
  unassigned: ["not-analysed", "Unassigned"],
  note: ["not-analysed", "Note"],
}

/** The icon and name of an alert's present state. */
export function stateOf({ phase, severity, is_state_unknown }) {
  if (is_state_unknown) return ["unknown", "State unknown"]
  return phase === "pending" ? ["silent", "Pending"] : SEVERITIES[severity]
}

/** The sentence without the job's id, which is shown above it, with times in the reader's zone; children for `h`. */
export function withoutName({ job_id, sentence, firing_at, began_at, at }) {
  const rest = sentence.startsWith(`${job_id} `) ? sentence.slice(job_id.length + 1) : null
  const words = tidy(contained(rest === null ? sentence : capitalized(rest)))
  return timed(words, new Date(firing_at ?? began_at ?? at))
}

/** How many of each severity: "1 critical, 2 warnings". */
export function bySeverity(alerts) {
  return Object.keys(SEVERITIES)
    .map((severity) => [alerts.filter((alert) => alert.severity === severity).length, severity])
    .filter(([number]) => number)
    .map(([number, severity]) => (severity === "warning" ? counted(number, "warning") : `${number} ${severity}`))
    .join(", ")
}

/** Whether a text from the address can name an alert. */
export const isFingerprint = (text) => /^[0-9a-f]{16}$/.test(text ?? "")

/** The address of an alert, active or not. */
export const alertHref = (fingerprint) => `/alerts?alert=${encodeURIComponent(fingerprint)}`

const share = (value) => `${percentNumber(value)} %`
const hours = (value) => `${value < 10 ? Number(value.toFixed(1)) : whole(value)} GPU-h per hour`
const none = () => ""

/** For each kind of rule: how its figure is written, its name and its condition in words. */
const ON = {
  slowdown: { figure: ratio, name: () => "Slowdown", holds: (at) => `a job runs at ${at} of its ideal or slower` },
  waste: { figure: share, name: () => "GPU time lost", holds: (at) => `a job loses ${at} of its GPU time or more` },
  "gpu-hours-lost": { figure: hours, name: () => "Loss", holds: (at) => `a job loses ${at} or more` },
  cause: {
    figure: share,
    name: (of) => `Cost of ${of ? named(of, causeName) : "a cause"}`,
    holds: (at, of) =>
      `${of ? `the cause ${named(of, causeName)}` : "a single cause"} costs ${at} of a job\u2019s GPU time or more`,
  },
  worker: {
    figure: ratio,
    name: (of) => `Slowdown by worker ${contained(of)}`,
    holds: (at, of) => `a worker${of && ` ${contained(of)}`} alone slows its job down to ${at} or more`,
  },
  host: {
    figure: ratio,
    name: (of) => `Slowdown of host ${contained(of)}`,
    holds: (at, of) => `${of ? `the host ${contained(of)}` : "a host"} is ${at} slower than its peers or more`,
  },
  optype: {
    figure: ratio,
    name: (of) => `Slowdown by ${of ? named(of, optypeName) : "one kind of operation"}`,
    holds: (at, of) => `${of ? named(of, optypeName) : "one kind of operation"} slows a job down to ${at} or more`,
  },
  stalled: { figure: none, name: () => "Stalled", holds: () => "no worker of a job sends anything any more" },
  "silent-worker": {
    figure: none,
    name: () => "Silent workers",
    holds: () => "workers of a job send nothing while others go on",
  },
  crashed: { figure: none, name: () => "Crashed", holds: () => "the processes of a job have failed or were killed" },
  "low-fidelity": {
    figure: share,
    name: () => "Low fidelity: discrepancy",
    holds: (at) =>
      at ? `the figures of a job are ${at} off what was recorded, or more` : "the figures of a job cannot be trusted",
  },
  "clock-residual": {
    figure: seconds,
    name: () => "Disagreement of clocks",
    holds: (at) => `clocks of a job disagree by ${at} or more after they were corrected`,
  },
  "fix-outcome": {
    figure: none,
    name: () => "Gain of a fix measured",
    holds: () => "the gain of an applied fix has been measured",
  },
  "step-time": {
    figure: ratio,
    name: () => "Step time against its own past",
    holds: (at) => `steps of a job take ${at} as long as in its own past, or longer`,
  },
}

/** A value in the unit of its rule, "" where it has none; values stored before there were rules are slowdowns. */
export function figureOf(on, value) {
  return value === null || value === undefined ? "" : tidy((ON[on] ?? ON.slowdown).figure(value))
}

/** The rule of an alert in words: "Slowdown over 1.10×"; of one stored before there were rules, its name. */
export function ruleWords({ on, rule, subject, threshold }) {
  const name = ON[on]?.name(subject) ?? contained(rule)
  const limit = figureOf(on, threshold)
  return limit ? `${name} over ${limit}` : name
}

/** When it fires, as a sentence. */
export function firesWhen({ on, of, jobs, above, for: lasts, min_confidence }) {
  const holds = (ON[on]?.holds ?? ((at) => `${contained(on)} is ${at} or more`))(
    figureOf(on, above),
    of === "*" ? "" : of,
  )
  const parts =
    isByClock(on) || isOnce(on)
      ? [lasts.seconds > 0 && `for ${duration(lasts.seconds)}`]
      : [`for ${lasting(lasts)}`, on === "cause" && `and Paceline is ${share(min_confidence)} sure or more`]
  const where = jobs === "*" ? "" : ` Only jobs that match ${contained(jobs)}.`
  return tidy(`Fires when ${[holds, ...parts].filter(Boolean).join(" ")}.${where}`)
}

/** When it resolves, as a sentence. */
export function resolvesWhen({ on, above, clear, keep_firing }) {
  const below = figureOf(on, clear ?? above)
  const time = keep_firing > 0 ? duration(keep_firing) : null
  if (below) return tidy(time ? `Resolves after ${time} below ${below}.` : `Resolves below ${below}.`)
  if (isOnce(on)) return "Each outcome is notified once."
  if (on === "crashed") return "Resolves once the job runs again."
  if (isByClock(on)) return time ? `Resolves once they have sent again for ${time}.` : "Resolves once they send again."
  return time ? `Resolves once that has been over for ${time}.` : "Resolves once that is over."
}

const isByClock = (on) => on === "stalled" || on === "silent-worker" || on === "crashed"

const isOnce = (on) => on === "fix-outcome"

function lasting({ windows, seconds: time_s }) {
  const inRow = windows === 1 ? "one window" : `${whole(windows)} windows in a row`
  return time_s > 0 ? `${inRow} and ${duration(time_s)}` : inRow
}

/** A name in words; a pattern stays as it was written. */
const named = (of, name) => (/[*?[]/.test(of) ? contained(of) : name(of).toLowerCase())
