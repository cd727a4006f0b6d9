/** Alert rules in words, and figures in the unit of what a rule is on. */

import { causeName, contained, duration, optypeName, percentNumber, ratio, seconds, tidy, whole } from "../words.js"

const share = (value) => `${percentNumber(value)} %`
const hours = (value) => `${value < 10 ? Number(value.toFixed(1)) : whole(value)} GPU-h per hour`
const none = () => ""

/** What each kind of rule is on: its figure in words, and when it holds, which ends with that figure. */
const ON = {
  slowdown: { figure: ratio, holds: (of, at) => `a job runs at ${at} of its ideal or slower` },
  waste: { figure: share, holds: (of, at) => `a job loses ${at} of its GPU time or more` },
  "gpu-hours-lost": { figure: hours, holds: (of, at) => `a job loses ${at} or more` },
  cause: { figure: share, holds: (of, at) => `${of ? `the cause ${named(of, causeName)}` : "a single cause"} costs ${at} of a job\u2019s GPU time or more` },
  worker: { figure: ratio, holds: (of, at) => `a worker${of && ` ${contained(of)}`} alone slows its job down to ${at} or more` },
  host: { figure: ratio, holds: (of, at) => `${of ? `the host ${contained(of)}` : "a host"} is ${at} slower than its peers or more` },
  optype: { figure: ratio, holds: (of, at) => `${of ? named(of, optypeName) : "one kind of operation"} slows a job down to ${at} or more` },
  stalled: { figure: none, holds: () => "no worker of a job sends anything any more" },
  "silent-worker": { figure: none, holds: () => "workers of a job send nothing while others go on" },
  "low-fidelity": { figure: share, holds: (of, at) => (at ? `the figures of a job are ${at} off what was recorded, or more` : "the figures of a job cannot be trusted") },
  "clock-residual": { figure: seconds, holds: (of, at) => `clocks of a job disagree by ${at} or more after they were corrected` },
  "step-time": { figure: ratio, holds: (of, at) => `steps of a job take ${at} as long as in its own past, or longer` },
}

/** A value in the unit of what its rule is on, "" where it has none; older than rules are slowdowns. */
export function figureOf(on, value) {
  return value === null || value === undefined ? "" : tidy((ON[on] ?? ON.slowdown).figure(value))
}

/** When it fires, as a sentence. */
export function firesWhen({ on, of, jobs, above, for: lasts, min_confidence }) {
  const holds = (ON[on]?.holds ?? ((_, at) => `${contained(on)} is ${at} or more`))(of === "*" ? "" : of, figureOf(on, above))
  const parts = isByClock(on) ? [lasts.seconds > 0 && `for ${duration(lasts.seconds)}`] : [`for ${lasting(lasts)}`, on === "cause" && `and Paceline is ${share(min_confidence)} sure or more`]
  const where = jobs === "*" ? "" : ` Only jobs that match ${contained(jobs)}.`
  return tidy(`Fires when ${[holds, ...parts].filter(Boolean).join(" ")}.${where}`)
}

/** When it resolves, as a sentence. */
export function resolvesWhen({ on, above, clear, keep_firing }) {
  const below = figureOf(on, clear ?? above)
  const time = keep_firing > 0 ? duration(keep_firing) : null
  if (below) return tidy(time ? `Resolves after ${time} below ${below}.` : `Resolves below ${below}.`)
  if (isByClock(on)) return time ? `Resolves once they have sent again for ${time}.` : "Resolves once they send again."
  return time ? `Resolves once that has been over for ${time}.` : "Resolves once that is over."
}

const isByClock = (on) => on === "stalled" || on === "silent-worker"

function lasting({ windows, seconds: time_s }) {
  const inRow = windows === 1 ? "one window" : `${whole(windows)} windows in a row`
  return time_s > 0 ? `${inRow} and ${duration(time_s)}` : inRow
}

/** A name in words; a pattern stays as it was written. */
const named = (of, name) => (/[*?[]/.test(of) ? contained(of) : name(of).toLowerCase())
