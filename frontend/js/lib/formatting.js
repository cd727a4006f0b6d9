/** How figures, times and names are written; as in app/formatting.py. */

export const NOT_MEASURED = "not measured"

const MINUS = "\u2212"
const TIMES = "\u00d7"
const THIN = "\u202f"

// A format takes longer to make than to use.
const WHOLE = new Intl.NumberFormat("en-US")
const DECIMAL = new Intl.NumberFormat("en-US", { maximumFractionDigits: 12 })
const TIME_OF_DAY = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" })
const DAY = new Intl.DateTimeFormat("en-CA")

// Characters that change the direction of the text around them.
const DIRECTION_MARKS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g

// As in app/charts/job/optypes.py; types that a job has declared are only capitalised.
const OPTYPE_NAMES = {
  "forward-compute": "Forward compute",
  "backward-compute": "Backward compute",
  optimizer: "Optimizer",
  gc: "Garbage collection",
  "forward-pp-comm": "Pipeline forward transfer",
  "backward-pp-comm": "Pipeline backward transfer",
  "params-all-gather": "Parameter gather",
  "grads-reduce-scatter": "Gradient reduce",
  "separate-grads-all-reduce": "Separate gradient reduce",
  "layernorm-grads-all-reduce": "Layer-norm gradient reduce",
  "embedding-grads-all-reduce": "Embedding gradient reduce",
  "optimizer-clip-main-grad": "Gradient clipping",
}

/** An operation type in words. */
export function optypeName(optype) {
  const words = optype.replaceAll("-", " ")
  return OPTYPE_NAMES[optype] ?? contained(words.charAt(0).toUpperCase() + words.slice(1).toLowerCase())
}

/** Text from outside, isolated so that it cannot change the direction of the text around it. */
export function contained(text) {
  const unmarked = text.replace(DIRECTION_MARKS, "")
  return /^\p{ASCII}*$/u.test(unmarked) ? unmarked : `\u2068${unmarked}\u2069`
}

/** An integer with thousands separated. */
export const whole = (number) => WHOLE.format(Math.round(number)).replace("-", MINUS)

/** A slowdown: 1.42×. */
export const ratio = (value) => `${value.toFixed(2)}${TIMES}`

/** A share as the number before its %, one decimal. */
export const percentNumber = (share, digits = 1) =>
  (100 * share).toFixed(digits).replace(/\.0$/, "").replace(/^-0$/, "0").replace("-", MINUS)

const CONFIDENCES = [
  [80, "high"],
  [60, "medium"],
  [0, "low"],
]

/** A confidence beside its label, as "high, 95 %"; as in app/formatting.py. */
export function confidenceFigure(share) {
  const figure = Math.floor(100 * share + 0.5)
  const [, level] = CONFIDENCES.find(([from]) => figure >= from)
  return `${level}, ${figure} %`
}

/** A confidence in words and as a number, as "high confidence, 95 %". */
export const confidenceWords = (share) => confidenceFigure(share).replace(", ", " confidence, ")

/** Seconds with three significant digits, in ms below one second. */
export const seconds = (value_s) =>
  value_s >= 1 ? `${Number(value_s.toPrecision(3))} s` : `${Number((1000 * value_s).toPrecision(3))} ms`

/** A number with its noun. */
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`

/** A remaining time, rounded as an estimate: 7 s, 40 s, 3 min. */
export function about(left_s) {
  if (left_s < 10) return `${Math.max(1, Math.round(left_s))} s`
  if (left_s < 95) return `${5 * Math.round(left_s / 5)} s`
  return left_s < 5400 ? `${Math.round(left_s / 60)} min` : counted(Math.floor(left_s / 3600), "hour")
}

/** A duration in the largest unit that it is a whole number of. */
export function duration(time_s) {
  const [unit, size_s] = [
    ["day", 86400],
    ["hour", 3600],
    ["minute", 60],
  ].find(([, size]) => time_s >= size && time_s % size === 0) ?? ["second", 1]
  const number = time_s / size_s
  return Number.isInteger(number) ? counted(number, unit) : `${Number(number.toPrecision(4))} ${unit}s`
}

/** A stretch of steps: "step 8", "steps 8 to 15". */
export const stepRange = (first, last) =>
  first === last ? `step ${whole(first)}` : `steps ${whole(first)} to ${whole(last)}`

/** How long ago: "3 s ago", "12 min ago". */
export function ago(date, now = new Date()) {
  const past_s = Math.max(0, Math.round((now - date) / 1000))
  if (past_s < 60) return `${past_s} s ago`
  if (past_s < 3600) return `${Math.floor(past_s / 60)} min ago`
  if (past_s < 86400) return `${Math.floor(past_s / 3600)} h ago`
  return `${counted(Math.floor(past_s / 86400), "day")} ago`
}

/** A time of day; with its date when that is not today. */
export function clock(date) {
  const time = TIME_OF_DAY.format(date)
  const isToday = date.toDateString() === new Date().toDateString()
  return isToday ? time : `${DAY.format(date)} ${time}`
}

/** A job's shape: "dp 32 × pp 8 × tp 8", axes of size 1 left out except dp and pp. */
export function shape(parallelism) {
  const { dp_size, pp_size, tp_size = 1, vpp_size = 1, dsp_size = 1 } = parallelism
  const more = [
    ["tp", tp_size],
    ["vpp", vpp_size],
    ["dsp", dsp_size],
  ].filter(([, size]) => size > 1)
  return [["dp", dp_size], ["pp", pp_size], ...more].map(([axis, size]) => `${axis} ${whole(size)}`).join(` ${TIMES} `)
}

/** A sentence with spaces that never break: a thin one before each %, one between time and zone. */
export const tidy = (sentence) => sentence.replaceAll(" %", `${THIN}%`).replaceAll(" UTC", "\u00a0UTC")

/** A number of GPU-hours, rounded: 4.2, 11,920. */
export const gpuHours = (value) => (value < 10 ? value.toFixed(1) : whole(value))

/** An estimate of GPU-hours, such as of a day, with two digits: 0.12, 4.3, 1,500; as in app/formatting.py. */
export const roughHours = (value) => {
  const rounded = Number(value.toPrecision(2))
  return DECIMAL.format(rounded).replace("-", MINUS)
}

/** Whether a value is neither null nor undefined. */
export const isKnown = (value) => value !== null && value !== undefined

/** A share as the number before its %: whole from 10 % on, one decimal below; as `percent` in app/formatting.py. */
export const roundedPercent = (share) => percentNumber(share, Math.abs(share) >= 0.0995 ? 0 : 1)

/** A text with its first letter in upper case. */
export const capitalized = (text) => text.charAt(0).toUpperCase() + text.slice(1)

/** The mean of some numbers. */
export const mean = (numbers) => numbers.reduce((total, number) => total + number, 0) / numbers.length
