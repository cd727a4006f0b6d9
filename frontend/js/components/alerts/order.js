/** The order of alerts, and their groups by job. */

import { isMuted } from "./notes.js"

const RANK = { critical: 0, warning: 1, info: 2 }

/**
 * Firing before pending, the most severe first; else in the server's order. A muted alert follows
 * the alert that inhibits it.
 */
export function worstFirst(alerts) {
  const rank = ({ phase, severity }) => (phase === "firing" ? 0 : 3) + RANK[severity]
  const there = new Set(alerts.map(({ fingerprint }) => fingerprint))
  const speakers = new Map(
    alerts.map((alert) => [alert.fingerprint, alert.inhibited_by.find((each) => there.has(each))]),
  )
  const ordered = [...alerts].sort((a, b) => rank(a) - rank(b))
  const leading = ordered.filter(({ fingerprint }) => !speakers.get(fingerprint))
  const grouped = new Set(
    leading.flatMap((alert) => [
      alert,
      ...ordered.filter(({ fingerprint }) => speakers.get(fingerprint) === alert.fingerprint),
    ]),
  )
  // An alert that inhibits another may itself be muted.
  return [...grouped, ...ordered.filter((alert) => !grouped.has(alert))]
}

/**
 * Alerts of each job: `{jobId, open, muted}`, the job with the worst alert first.
 *
 * `open` are those that notify receivers, the worst first; of a job with muted alerts only it is empty.
 */
export function byJob(alerts) {
  const groups = new Map()
  for (const alert of worstFirst(alerts)) {
    const group = groups.get(alert.job_id) ?? { jobId: alert.job_id, open: [], muted: [] }
    groups.set(alert.job_id, group)
    group[isMuted(alert) ? "muted" : "open"].push(alert)
  }
  const worst = ({ open }) => Math.min(...open.map(({ severity }) => RANK[severity]), Number.POSITIVE_INFINITY)
  return [...groups.values()].sort((a, b) => worst(a) - worst(b) || 0)
}
