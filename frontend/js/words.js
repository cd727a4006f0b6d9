/** How figures and times are written; as in app/charts/words.py. */

export const NOT_MEASURED = "not measured"

const MINUS = "\u2212"
const TIMES = "\u00d7"
const THIN = "\u202f"

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

/** A sentence with a thin space that never breaks before each %. */
export const tidy = (sentence) => sentence.replaceAll(" %", `${THIN}%`)
