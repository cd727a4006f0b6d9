/** Names and states of receivers and of notifications to them, in words and icons. */

import { ago, capitalized, clock, contained, counted } from "../lib/formatting.js"
import { matchersWords } from "./label-matchers.js"

/** Formats and their names, the default first. */
export const FORMATS = {
  standard: "Signed webhook (Standard Webhooks)",
  alertmanager: "Alertmanager webhook",
  "alertmanager-push": "Alertmanager itself",
  pagerduty: "PagerDuty",
  slack: "Slack",
  cloudevents: "CloudEvents",
  email: "E-mail",
}

// The id of the receiver in the settings; as in app/alerts/receiver.py.
const OF_SETTINGS = "settings"

/** The name of a receiver. */
export const receiverName = ({ receiver_id, name }) =>
  receiver_id === OF_SETTINGS ? "PACELINE_WEBHOOK_URL" : contained(name)

/** Its address; that of the operator's own receiver is hidden from others. */
export const placeWords = ({ address }) =>
  address === null ? "address hidden (set by the operator)" : contained(address)

const STATES = {
  ok: ["healthy", "Works"],
  failing: ["warning", "Failing"],
  resting: ["warning", "Failing"],
  disabled: ["stalled", "Disabled"],
  off: ["not-analysed", "Off"],
}

/** Whether notifications to it fail now. */
export const isFailing = ({ health }) => ["failing", "resting", "disabled"].includes(health.state)

/** The icon and the word of a receiver's state. */
export function receiverState({ health }) {
  if (health.state === "ok" && !health.last_ok_at) return ["silent", "Not used yet"]
  return STATES[health.state] ?? ["not-analysed", contained(health.state)]
}

/** Its failures in a sentence; where there are none, when a notification was last delivered. */
export function healthWords({ health }) {
  const { state, failures, failing_since, probe_at, disabled_at, disabled_reason, last_ok_at, last_detail } = health
  const last = last_ok_at ? `Last delivery ${ago(new Date(last_ok_at))}.` : "No delivery yet."
  if (state === "disabled") {
    const reason = contained(disabled_reason ?? "no reason recorded")
    return `Disabled at ${clock(new Date(disabled_at))}: ${reason}. ${last}`
  }
  if (state !== "failing" && state !== "resting") return last
  const since = failing_since ? ` since ${clock(new Date(failing_since))}` : ""
  const probe =
    state === "resting" && probe_at
      ? ` The next attempt is at ${clock(new Date(probe_at))}; others are queued until then.`
      : ""
  const detail = last_detail ? `: ${contained(last_detail)}` : ""
  return `${counted(failures, "attempt")} in a row failed${since}${detail}.${probe} ${last}`
}

/** Which alerts it is notified of: "Warning and critical, where job is llm-*, not when resolved". */
export function wantsWords({ min_severity, matchers, wants_resolved }) {
  const severity = { info: "Every severity", warning: "Warning and critical", critical: "Critical only" }[min_severity]
  return [severity, matchers.length > 0 && `where ${matchersWords(matchers)}`, !wants_resolved && "not when resolved"]
    .filter(Boolean)
    .join(", ")
}

const MARKS = {
  delivered: "healthy",
  due: "silent",
  failed: "stalled",
  outdated: "not-analysed",
  silenced: "not-analysed",
}
const KINDS = {
  firing: "firing",
  resolved: "resolved",
  acknowledged: "acknowledged",
  refresh: "still firing",
  test: "a test",
  "notifier-unhealthy": "another receiver is failing",
  "fix-outcome": "what a fix has achieved",
}

/** The icon of a notification's state. */
export const notificationIcon = ({ state }) => MARKS[state] ?? "not-analysed"

/** The state of a notification: "delivered", "pending, 2 attempts". */
export function notificationState({ state, attempt }) {
  if (state === "delivered") return "delivered"
  if (state === "failed") return attempt ? `failed after ${counted(attempt, "attempt")}` : "failed"
  if (state === "outdated") return "skipped, superseded by a newer one"
  if (state === "silenced") return "skipped, silenced before it was sent"
  return attempt ? `pending, ${counted(attempt, "attempt")}` : "pending"
}

/** The kind of a notification in words. */
export const notificationKind = ({ kind }) => KINDS[kind] ?? contained(kind)

/** The result of an attempt; most details include the status. That of the operator's receiver is hidden from others. */
export function attemptWords({ status, detail }) {
  const words = detail ?? (status ? "" : "result hidden (receiver set by the operator)")
  return contained(status && !words.includes(String(status)) ? `${status} ${words}`.trim() : words)
}

/** The receiver of a notification; of a deleted one, its id. */
export const receiverOf = ({ receiver_id, receiver_name }) =>
  receiverName({ receiver_id, name: receiver_name ?? receiver_id })

/** Which receivers were notified of an alert, by the notifications of its rule and job; `{mark, text}` or null. */
export function notifiedOf(deliveries) {
  return ({ job_id, rule, phase, began_at }) => {
    if (phase !== "firing") return null
    const about = deliveries.filter(
      (each) => each.job_id === job_id && each.rule === rule && each.kind === "firing" && each.created_at >= began_at,
    )
    // The newest notification of each receiver; the list is newest first.
    const latest = [...new Map(about.toReversed().map((each) => [each.receiver_id, each])).values()]
    const named = (state) =>
      latest
        .filter((each) => each.state === state)
        .map(receiverOf)
        .join(", ")
    const [failed, due, delivered] = ["failed", "due", "delivered"].map(named)
    const parts = [
      failed && `failed: ${failed}`,
      due && `pending: ${due}`,
      delivered && `notified: ${delivered}${deliveredAt(latest)}`,
    ].filter(Boolean)
    if (!parts.length) return null
    const text = parts.join("; ")
    return {
      mark: failed ? "warning" : due ? "silent" : "healthy",
      text: `${capitalized(text)}.`,
    }
  }
}

function deliveredAt(latest) {
  const times = latest.filter(({ state, done_at }) => state === "delivered" && done_at).map(({ done_at }) => done_at)
  return times.length ? ` at ${clock(new Date(times.sort().at(-1)))}` : ""
}
