/** What receivers of alerts are called, how they fare, and the mark of each. */

import { ago, clock, contained, counted } from "../words.js"
import { matchersWords } from "./matchers.js"

/** Formats with their words, the first one the usual one. */
export const FORMATS = {
  standard: "Signed webhook (Standard Webhooks)",
  alertmanager: "Alertmanager webhook",
  "alertmanager-push": "Alertmanager itself",
  pagerduty: "PagerDuty",
  slack: "Slack",
  cloudevents: "CloudEvents",
  email: "E-mail",
}

// As app/alerts/endpoint.py calls the one of the environment.
const OF_SETTINGS = "settings"

/** What people call a receiver. */
export const receiverName = ({ endpoint_id, name }) => (endpoint_id === OF_SETTINGS ? "PACELINE_WEBHOOK_URL" : contained(name))

/** Where it is; of the operator's own, others are told no address. */
export const placeWords = ({ address }) => (address === null ? "where only the operator knows" : contained(address))

const STATES = {
  ok: ["healthy", "Works"],
  failing: ["warning", "Failing"],
  resting: ["warning", "Failing"],
  disabled: ["stalled", "Disabled"],
  off: ["not-analysed", "Off"],
}

/** Whether what is sent to it does not arrive now. */
export const isIll = ({ health }) => ["failing", "resting", "disabled"].includes(health.state)

/** The mark and the word of a receiver. */
export function receiverState({ health }) {
  if (health.state === "ok" && !health.last_ok_at) return ["silent", "Not used yet"]
  return STATES[health.state] ?? ["not-analysed", contained(health.state)]
}

/** What is the matter with it, in a sentence; that it was told last where nothing is. */
export function healthWords({ health }) {
  const { state, failures, failing_since, probe_at, disabled_at, disabled_reason, last_ok_at, last_detail } = health
  const last = last_ok_at ? `Last told ${ago(new Date(last_ok_at))}.` : "Never told anything so far."
  if (state === "disabled") return `Given up at ${clock(new Date(disabled_at))}: ${contained(disabled_reason ?? "for a reason nobody wrote down")}. ${last}`
  if (state !== "failing" && state !== "resting") return last
  const since = failing_since ? ` since ${clock(new Date(failing_since))}` : ""
  const probe = state === "resting" && probe_at ? ` The next attempt is at ${clock(new Date(probe_at))}; the others wait for it.` : ""
  return `${counted(failures, "attempt")} in a row failed${since}${last_detail ? `: ${contained(last_detail)}` : ""}.${probe} ${last}`
}

/** What it wants to know of: "warning and worse, where job is llm-*, without what resolves". */
export function wantsWords({ min_severity, matchers, wants_resolved }) {
  const severity = { info: "Every severity", warning: "Warning and critical", critical: "Critical only" }[min_severity]
  return [severity, matchers.length > 0 && `where ${matchersWords(matchers)}`, !wants_resolved && "without what resolves"].filter(Boolean).join(", ")
}
