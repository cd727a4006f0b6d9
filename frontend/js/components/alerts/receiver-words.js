/** Names and states of receivers and of notifications to them, in words and icons. */

import { ago, capitalized, clock, contained, counted, duration, seconds, whole } from "../../lib/formatting.js"
import { matchersWords } from "./matchers.js"

/** Formats and their names, the default first. */
export const FORMATS = {
  standard: "Signed webhook (Standard Webhooks)",
  alertmanager: "Alertmanager webhook",
  "alertmanager-push": "Alertmanager itself",
  pagerduty: "PagerDuty",
  slack: "Slack",
  cloudevents: "CloudEvents",
  email: "E-mail",
  healthchecks: "Check of healthchecks.io",
}

/** Formats that heartbeats can be sent in; one of them takes nothing else. */
export const HEARTBEAT_FORMATS = new Set([
  "standard",
  "alertmanager",
  "alertmanager-push",
  "cloudevents",
  "healthchecks",
])
export const HEARTBEATS_ONLY = "healthchecks"

/** Formats whose notifications are signed with a secret that is made here. */
export const SIGNED = new Set(["standard", "alertmanager", "cloudevents"])

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
  untried: ["silent", "Not tried yet"],
  unreachable: ["warning", "Not reached"],
  failing: ["warning", "Failing"],
  resting: ["warning", "Failing"],
  disabled: ["stalled", "Disabled"],
  off: ["not-analysed", "Off"],
  locked: ["stalled", "Locked"],
}

const FAILING = new Set(["failing", "resting", "disabled", "unreachable", "locked"])

/** Whether notifications to it fail now, as far as that is known. */
export const isFailing = ({ health }) => FAILING.has(health.state)

/** Those that fail first, then those of which nothing is known; else in their order. */
export function failingFirst(receivers) {
  const place = ({ health }) => (FAILING.has(health.state) ? 0 : health.state === "untried" ? 1 : 2)
  return receivers.toSorted((a, b) => place(a) - place(b))
}

/** The icon and the word of a receiver's state. */
export const receiverState = ({ health }) => STATES[health.state] ?? ["not-analysed", contained(health.state)]

/**
 * Whether the receivers work: `marked` (icon and word), `sentence`, `sub`, and in short a `note`.
 *
 * One works only once a notification, or a test, was delivered to it.
 */
export function receiversSummary(receivers) {
  const number = (isOne) => receivers.filter(isOne).length
  const [failing, untried] = [number(isFailing), number(({ health }) => health.state === "untried")]
  const on = number(({ health }) => health.state !== "off")
  if (!on) {
    const sub = "Alerts show on these pages only."
    if (!receivers.length)
      return { marked: ["warning", "None"], sentence: "No receivers: alerts notify nobody.", sub, note: "none" }
    return {
      marked: ["warning", "Off"],
      sentence: "No receiver is enabled: alerts notify nobody.",
      sub,
      note: "all off",
    }
  }
  if (failing) {
    const [first] = failingFirst(receivers)
    return {
      marked: ["warning", "Failing"],
      sentence:
        on === 1
          ? "The only receiver is failing."
          : `${whole(failing)} of ${whole(on)} receivers ${are(failing)} failing.`,
      sub: `${receiverName(first)}: ${reason(first)}. Failed notifications are kept and can be sent again.`,
      note: `${whole(failing)} failing`,
    }
  }
  if (untried)
    return {
      marked: ["silent", "Not tried"],
      sentence:
        on === 1
          ? "The only receiver is not tried yet."
          : `${whole(untried)} of ${whole(on)} receivers ${are(untried)} not tried yet.`,
      sub: "A receiver works once something was delivered to it: send a test.",
      note: `${whole(untried)} not tried yet`,
    }
  return {
    marked: ["healthy", "Working"],
    sentence: on === 1 ? "The only receiver is working." : `All ${whole(on)} receivers are working.`,
    sub: "Notifications are delivered.",
    note: "all working",
  }
}

const are = (number) => (number === 1 ? "is" : "are")

/** Why it fails, in a few words. */
function reason({ health: { state, last_detail, disabled_reason } }) {
  if (state === "disabled") return `disabled, ${contained(disabled_reason ?? "no reason recorded")}`
  return contained(last_detail ?? "reason hidden (receiver set by the operator)")
}

/** Its failures in a sentence; where there are none, when a notification was last delivered. */
export function healthWords({ health }) {
  const { state, failures, failing_since, probe_at, disabled_at, disabled_reason, last_ok_at, last_detail } = health
  const last = last_ok_at ? `Last delivery ${ago(new Date(last_ok_at))}.` : "No delivery yet."
  if (state === "disabled") {
    const reason = contained(disabled_reason ?? "no reason recorded")
    return `Disabled at ${clock(new Date(disabled_at))}: ${reason}. ${last}`
  }
  if (state === "locked") return `Nothing can be sent: ${contained(last_detail)}. ${last}`
  if (state === "unreachable") return `Not reached when it was saved: ${contained(last_detail)}. ${last}`
  if (state === "untried") return "No delivery yet: send a test."
  if (state !== "failing" && state !== "resting") return last
  const since = failing_since ? ` since ${clock(new Date(failing_since))}` : ""
  const probe =
    state === "resting" && probe_at
      ? ` The next attempt is at ${clock(new Date(probe_at))}; others are queued until then.`
      : ""
  const detail = last_detail ? `: ${contained(last_detail)}` : ""
  return `${counted(failures, "attempt")} in a row failed${since}${detail}.${probe} ${last}`
}

/** Of what it is notified: "Warning and critical, where job is llm-*, not when resolved". */
export function wantsWords({ min_severity, matchers, wants_resolved, heartbeat_every_s }) {
  if (heartbeat_every_s) return `A heartbeat every ${duration(heartbeat_every_s)} while the service works, no alerts`
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
  "service-down": "the service does not work",
  "service-up": "the service works again",
  heartbeat: "a heartbeat",
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

// Formats whose names on-call engineers know their receivers by.
const PRODUCTS = { pagerduty: "PagerDuty", slack: "Slack", email: "E-mail", "alertmanager-push": "Alertmanager" }

/** A receiver and what became of a notification to it: "Slack #oncall delivered 02:41:12". */
export function outcomeWords({ receiver_id, receiver_name, receiver_format, state, attempt, detail, done_at }) {
  const name = receiverOf({ receiver_id, receiver_name })
  const product = PRODUCTS[receiver_format]
  const receiver = product && !name.toLowerCase().includes(product.toLowerCase()) ? `${product} ${name}` : name
  const failed = `failed ${attempt === 1 ? "once" : `${attempt} times`}${detail ? `: ${contained(detail)}` : ""}`
  if (state === "delivered") return `${receiver} delivered ${clock(new Date(done_at))}`
  if (state === "failed") return `${receiver} ${attempt ? failed : "failed"}`
  if (state === "due") return `${receiver} ${attempt && detail ? `${failed}, next attempt pending` : "pending"}`
  return `${receiver} ${notificationState({ state, attempt })}`
}

/** The kind of a notification in words. */
export const notificationKind = ({ kind }) => KINDS[kind] ?? contained(kind)

/** The result of an attempt; most details include the status. That of the operator's receiver is hidden from others. */
export function attemptWords({ status, detail }) {
  const words = detail ?? (status ? "" : "result hidden (receiver set by the operator)")
  return contained(status && !words.includes(String(status)) ? `${status} ${words}`.trim() : words)
}

/** What a receiver that is not saved answered to a test, in a sentence or two; `isSigned` where its format signs. */
export function testWords({ delivered, status, detail, took_s }, isSigned) {
  if (delivered) return `Delivered in ${seconds(took_s)}: ${contained(detail)}.`
  const isRefused = isSigned && (status === 401 || status === 403)
  const hint = "It may check signatures: save the receiver, and set the secret there."
  return `Not delivered. ${capitalized(contained(detail))}.${isRefused ? ` ${hint}` : ""}`
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
