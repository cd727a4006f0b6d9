/** What alerts and their transitions are called, and the mark of each. */

import { contained, counted, tidy } from "../words.js"

/** Marks and words of severities, the worst first. */
export const SEVERITIES = { critical: ["stalled", "Critical"], warning: ["straggling", "Warning"], info: ["not-analysed", "Info"] }

/** Marks and words of transitions. */
export const KINDS = {
  firing: ["straggling", "Began"],
  resolved: ["healthy", "Resolved"],
  pending: ["silent", "Pending"],
  cleared: ["not-analysed", "Cleared"],
  "no-data": ["silent", "No data"],
  "data-again": ["healthy", "Data again"],
  acknowledged: ["finished", "Acknowledged"],
  unacknowledged: ["not-analysed", "Taken back"],
}

/** The mark and the word of an alert now. */
export function stateOf({ phase, severity }) {
  return phase === "pending" ? ["silent", "Pending"] : SEVERITIES[severity]
}

/** The sentence without the job's id, which stands above it. */
export function withoutName({ job_id, sentence }) {
  const rest = sentence.startsWith(`${job_id} `) ? sentence.slice(job_id.length + 1) : null
  if (rest === null) return tidy(contained(sentence))
  return tidy(contained(rest.charAt(0).toUpperCase() + rest.slice(1)))
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

/** The address of an alert, whatever has become of it. */
export const alertHref = (fingerprint) => `/alerts?alert=${encodeURIComponent(fingerprint)}`
