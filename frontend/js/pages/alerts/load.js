/** What the alerts page requests from the server. */

import { isFingerprint } from "../../components/alert-words.js"
import { notifiedOf } from "../../components/receiver-words.js"
import { readAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull } from "../../lib/api.js"

/** Maximum length of each list: an alert storm has more than can be read. */
export const MOST = 200

/** Everything that the page shows, requested in parallel; the first `history` transitions. */
export async function loadAlerts({ history }) {
  const { kind, q, phase, severity, find, alert } = readAddress("kind", "q", "phase", "severity", "find", "alert")
  const list = (path, limit, more = {}) => getJson(`${path}?${new URLSearchParams({ limit, ...present(more) })}`)
  const filter = present({ phase, severity, q: find })
  const [active, past, silences, endpoints, deliveries, { rules }, filtered, one] = await Promise.all([
    list("/alerts", MOST),
    list("/alerts/transitions", history, { kind, q }),
    list("/silences", MOST),
    getJson("/receivers"),
    list("/deliveries", MOST),
    getJson("/rules"),
    Object.keys(filter).length ? list("/alerts", MOST, filter) : null,
    isFingerprint(alert) ? getJsonOrNull(`/alerts/${alert}`) : null,
  ])
  return {
    active,
    past,
    silences,
    endpoints: endpoints.items,
    rules,
    now: filtered ?? active,
    one,
    notified: notifiedOf(deliveries.items),
  }
}

const present = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value))

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
