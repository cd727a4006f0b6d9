/** What the alerts page requests from the server. */

import { notifiedOf } from "../../components/alerts/receiver-words.js"
import { isFingerprint } from "../../components/alerts/words.js"
import { readAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull } from "../../lib/api.js"
import { listInAddress } from "./lists.js"

/** Maximum length of each list: an alert storm has more than can be read. */
export const MOST = 200

/** Everything that the page shows, requested in parallel; the first `history` transitions. */
export async function loadAlerts({ history }) {
  const { kind, q, severity, find, alert } = readAddress("kind", "q", "severity", "find", "alert")
  const shown = listInAddress()
  const isActive = shown === "firing" || shown === "pending"
  const list = (path, limit, more = {}) => getJson(`${path}?${new URLSearchParams({ limit, ...present(more) })}`)
  const filter = present({ severity, q: find })
  const isFiltered = isActive && Object.keys(filter).length > 0
  const [active, past, silences, endpoints, deliveries, { rules }, filtered, one] = await Promise.all([
    list("/alerts", MOST),
    isActive ? null : list("/alerts/transitions", history, { kind: shown === "resolved" ? shown : kind, q }),
    list("/silences", MOST),
    getJson("/receivers"),
    list("/deliveries", MOST),
    getJson("/rules"),
    isFiltered ? list("/alerts", MOST, { phase: shown, ...filter }) : null,
    isFingerprint(alert) ? getJsonOrNull(`/alerts/${alert}`) : null,
  ])
  return {
    active,
    past,
    silences,
    endpoints: endpoints.items,
    rules,
    now: (filtered ?? active).items.filter(({ phase }) => phase === shown),
    one,
    notified: notifiedOf(deliveries.items),
  }
}

const present = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value))
