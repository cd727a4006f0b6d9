/** Clock times in the reader's own zone; the server's texts have them in UTC. */

import { h } from "./dom.js"
import { counted, isKnown, whole } from "./formatting.js"

// A format takes longer to make than to use.
const MINUTES = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" })
const SECONDS = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" })
const DAY = new Intl.DateTimeFormat("en-CA")
const SHORT_DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" })
const ZONE = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" })

// As `utc_time` in app/formatting.py writes them: without a date they are of `day`, in UTC.
const UTC_TIME = /(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d)[ \u00a0]UTC/g

/** A text with each UTC time as a `time` element in the reader's zone, for `h`. `day` is when it was written. */
export function timed(text, day = new Date()) {
  const parts = []
  let end = 0
  for (const found of text.matchAll(UTC_TIME)) {
    parts.push(text.slice(end, found.index), timeOf(dateOf(found, day)))
    end = found.index + found[0].length
  }
  return [...parts, text.slice(end)].filter((part) => part !== "")
}

/** A text with each UTC time in the reader's zone, as plain text. */
export const timedText = (text, day = new Date()) =>
  text.replaceAll(UTC_TIME, (...found) => minutes(dateOf(found, day)))

const dateOf = ([, date, time], day) => new Date(`${date ?? day.toISOString().slice(0, 10)}T${time}:00Z`)

/** A `time` element: the time of day, with its date when that is not today; its zone is in the title. */
export function timeOf(date, now = new Date()) {
  return h("time", { datetime: date.toISOString(), title: exactly(date) }, minutes(date, now))
}

/** The time of day to the minute; with its date when that is not today. */
export function minutes(date, now = new Date()) {
  return withDate(MINUTES.format(date), date, now)
}

/** Date, time, zone, and the same in UTC. */
export function exactly(date) {
  const local = `${DAY.format(date)} ${SECONDS.format(date)} ${zoneName(date)}`
  return `${local}, ${date.toISOString().slice(11, 19)} UTC`
}

/** The short name of the reader's zone: "CET", "GMT+1". */
export function zoneName(date = new Date()) {
  return ZONE.formatToParts(date).find(({ type }) => type === "timeZoneName").value
}

/** A duration in one rounded unit, as `short_duration` in app/formatting.py: 40 s, 12 min, 3 h, 2 days. */
export function shortDuration(time_s) {
  const [unit, size_s] = [
    ["s", 1, 95],
    ["min", 60, 5700],
    ["h", 3600, 172800],
  ].find(([, , below_s]) => time_s < below_s) ?? ["day", 86400]
  const number = Math.max(0, Math.round(time_s / size_s))
  return unit === "day" ? counted(number, unit) : `${whole(number)} ${unit}`
}

/** Time, step and duration of an onset, as far as known; children for `h`. As `since_words` in app/formatting.py. */
export function sinceWhen({ step, at, lasted_s }) {
  const parts = [at && timeOf(new Date(at)), `step ${whole(step)}`]
  if (at && isKnown(lasted_s) && lasted_s >= 1) parts.push(shortDuration(lasted_s))
  return joined(parts.filter(Boolean))
}

const withDate = (time, date, now) =>
  date.toDateString() === now.toDateString() ? time : `${DAY.format(date)} ${time}`

const joined = (parts) => parts.flatMap((part, index) => (index ? [", ", part] : [part]))

/** A tick's time of day, as `clock_label` in app/formatting.py, in the reader's zone. */
export function tickTime(unix_s, detail) {
  const date = new Date(1000 * unix_s)
  const time = (detail === "seconds" ? SECONDS : MINUTES).format(date)
  return detail === "days" ? `${SHORT_DAY.format(date)} ${time}` : time
}

/** The time in a hover: to the second, with its date when that is not today. */
export function hoverTime(unix_s, now = new Date()) {
  const date = new Date(1000 * unix_s)
  return withDate(SECONDS.format(date), date, now)
}
