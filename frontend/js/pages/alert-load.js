/** What the alerts page shows, as the server has it now. */

import { getJson, getJsonOrNull } from "../api.js"
import { isFingerprint } from "../components/alert-words.js"
import { toldOf } from "../components/message-words.js"
import { chosen } from "../selection.js"

/** Of each list at most so many: a storm has more alerts than anybody reads. */
export const MOST = 200

/** Everything that the page shows, asked for at once; the first `history` transitions. */
export async function loadAlerts({ history }) {
  const { kind, q, phase, severity, find, alert } = chosen("kind", "q", "phase", "severity", "find", "alert")
  const list = (path, limit, more = {}) => getJson(`${path}?${new URLSearchParams({ limit, ...present(more) })}`)
  const filter = present({ phase, severity, q: find })
  const [active, past, silences, endpoints, deliveries, { rules }, filtered, one] = await Promise.all([
    list("/alerts/active", MOST),
    list("/alerts", history, { kind, q }),
    list("/silences", MOST),
    getJson("/endpoints"),
    list("/deliveries", MOST),
    getJson("/rules"),
    Object.keys(filter).length ? list("/alerts/active", MOST, filter) : null,
    isFingerprint(alert) ? getJsonOrNull(`/alerts/${alert}`) : null,
  ])
  return { active, past, silences, endpoints: endpoints.items, rules, now: filtered ?? active, one, told: toldOf(deliveries.items) }
}

const present = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value))

const RANK = { critical: 0, warning: 1, info: 2 }

/**
 * What fires before what is pending, and the worst of each first; else as they came. What is kept
 * back follows the alert that speaks for it.
 */
export function worstFirst(alerts) {
  const rank = ({ phase, severity }) => (phase === "firing" ? 0 : 3) + RANK[severity]
  const there = new Set(alerts.map(({ fingerprint }) => fingerprint))
  const speakers = new Map(alerts.map((alert) => [alert.fingerprint, alert.inhibited_by.find((each) => there.has(each))]))
  const ordered = [...alerts].sort((a, b) => rank(a) - rank(b))
  const leading = ordered.filter(({ fingerprint }) => !speakers.get(fingerprint))
  const grouped = new Set(leading.flatMap((alert) => [alert, ...ordered.filter(({ fingerprint }) => speakers.get(fingerprint) === alert.fingerprint)]))
  // One that speaks for another may itself be kept back.
  return [...grouped, ...ordered.filter((alert) => !grouped.has(alert))]
}
