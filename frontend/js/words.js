/** How figures and times are written; as in app/charts/words.py. */

export const NOT_MEASURED = "not measured"

const MINUS = "\u2212"
const TIMES = "\u00d7"
const THIN = "\u202f"

// Marks that turn the direction of the text around them.
const DIRECTION_MARKS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g

/** Text from outside without power over the direction of the text around it. */
export function contained(text) {
  const unmarked = text.replace(DIRECTION_MARKS, "")
  return /^[\x00-\x7f]*$/.test(unmarked) ? unmarked : `\u2068${unmarked}\u2069`
}

/** An integer with thousands separated. */
export const whole = (number) => Math.round(number).toLocaleString("en-US").replace("-", MINUS)

/** A slowdown: 1.42×. */
export const ratio = (value) => `${value.toFixed(2)}${TIMES}`

/** A share as the number before its %, one decimal. */
export const percentNumber = (share, digits = 1) =>
  (100 * share).toFixed(digits).replace(/\.0$/, "").replace(/^-0$/, "0").replace("-", MINUS)

/** Seconds with three significant digits, in ms below one second. */
export const seconds = (value_s) =>
  value_s >= 1 ? `${Number(value_s.toPrecision(3))} s` : `${Number((1000 * value_s).toPrecision(3))} ms`

/** A number with its noun. */
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`

/** How much longer, as roughly as it can be known: 7 s, 40 s, 3 min. */
export function about(left_s) {
  if (left_s < 10) return `${Math.max(1, Math.round(left_s))} s`
  if (left_s < 95) return `${5 * Math.round(left_s / 5)} s`
  return left_s < 5400 ? `${Math.round(left_s / 60)} min` : counted(Math.floor(left_s / 3600), "hour")
}

/** A stretch of steps: "step 8", "steps 8 to 15". */
export const stepRange = (first, last) => (first === last ? `step ${whole(first)}` : `steps ${whole(first)} to ${whole(last)}`)

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
  const time = date.toLocaleTimeString("en-GB")
  const isToday = date.toDateString() === new Date().toDateString()
  return isToday ? time : `${date.toLocaleDateString("en-CA")} ${time}`
}

/** A job's shape: "dp 32 × pp 8 × tp 8", axes of size 1 left out except dp and pp. */
export function shape(parallelism) {
  const { dp_size, pp_size, tp_size = 1, vpp_size = 1, dsp_size = 1 } = parallelism
  const more = [["tp", tp_size], ["vpp", vpp_size], ["dsp", dsp_size]].filter(([, size]) => size > 1)
  return [["dp", dp_size], ["pp", pp_size], ...more].map(([axis, size]) => `${axis} ${whole(size)}`).join(` ${TIMES} `)
}

/** A sentence with spaces that never break: a thin one before each %, one between time and zone. */
export const tidy = (sentence) => sentence.replaceAll(" %", `${THIN}%`).replaceAll(" UTC", "\u00a0UTC")
