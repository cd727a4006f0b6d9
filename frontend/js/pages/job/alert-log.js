/** When alerts of a job fired and resolved, and what became of their notifications. */

import { outcomeWords } from "../../components/alerts/receiver-words.js"
import { alertHref, ruleWords } from "../../components/alerts/words.js"
import { getJson } from "../../lib/api.js"
import { onChange } from "../../lib/events.js"

const MAX_TRANSITIONS = 20
const MAX_DELIVERIES = 100
// Delivery attempts send no events.
const REPEAT_MS = 10_000
// Notifications of a group are a minute apart unless the operator wants it otherwise.
const NOTIFIED_WITHIN_MS = 90_000
// Transitions have the time of the consumer, notifications that of the database.
const CLOCKS_APART_MS = 5000

/** Loads the log from `begin` until `leave`, and calls `onLoad` whenever it has changed. */
export class AlertLog {
  constructor({ jobId, onLoad }) {
    Object.assign(this, { jobId, onLoad, transitions: [], deliveries: [], numRequests: 0, hasLeft: false, stops: [] })
  }

  begin() {
    this.refresh()
    const stop = onChange(() => this.refresh(), "alert")
    const timer = setInterval(() => this.isPending() && this.refresh(), REPEAT_MS)
    this.stops = [stop, () => clearInterval(timer)]
  }

  leave() {
    this.hasLeft = true
    for (const stop of this.stops) stop()
  }

  isPending() {
    const isNew = ({ at }) => Date.now() - new Date(at) < NOTIFIED_WITHIN_MS + REPEAT_MS
    return this.deliveries.some(({ state }) => state === "due") || this.transitions.some(isNew)
  }

  /** A page without the log is still a page. */
  async refresh() {
    const number = ++this.numRequests
    const list = (path, limit, more) => getJson(`${path}?${new URLSearchParams({ job: this.jobId, limit })}${more}`)
    const found = await Promise.all([
      list("/alerts/transitions", MAX_TRANSITIONS, "&kind=firing&kind=resolved"),
      list("/deliveries", MAX_DELIVERIES, ""),
    ]).catch(() => null)
    if (!found || this.hasLeft || number !== this.numRequests) return
    const before = JSON.stringify([this.transitions, this.deliveries])
    Object.assign(this, { transitions: found[0].items, deliveries: found[1].items })
    if (JSON.stringify([this.transitions, this.deliveries]) !== before) this.onLoad()
  }

  /** A row for each transition, oldest first: `{step, epoch, at, words, href}`; `step` is null where time counts. */
  rows() {
    return this.transitions
      .map((transition) => {
        const { window_id, at, fingerprint, kind } = transition
        const [epoch, step] = window_id ? window_id.split("-").map(Number) : [null, null]
        const found = this.deliveriesOf(transition)
        const outcomes = found.length ? found.map(outcomeWords) : this.nobody(transition)
        const happened = `${ruleWords(transition)} ${kind === "firing" ? "fired" : "resolved"}`
        return { epoch, step, at, words: [happened, ...outcomes].join("; "), href: alertHref(fingerprint) }
      })
      .reverse()
  }

  /** Says that a firing notified nobody, once it would have, as far back as the list of notifications reaches. */
  nobody({ kind, at }) {
    const isOld = Date.now() - new Date(at) > NOTIFIED_WITHIN_MS
    const oldest = this.deliveries.length < MAX_DELIVERIES ? 0 : new Date(this.deliveries.at(-1).created_at)
    return kind === "firing" && isOld && new Date(at) > oldest ? ["no receiver was notified"] : []
  }

  /** The first notification of a transition to each receiver. */
  deliveriesOf({ event_id, fingerprint, kind, at }) {
    const next = this.transitions.findLast((other) => other.fingerprint === fingerprint && other.event_id > event_id)
    const [start, end] = [new Date(at) - CLOCKS_APART_MS, next ? new Date(next.at) - CLOCKS_APART_MS : Infinity]
    const about = this.deliveries.filter(
      (each) =>
        each.fingerprints.includes(fingerprint) &&
        (each.kind === kind || (kind === "resolved" && each.kind === "firing")) &&
        new Date(each.created_at) >= start &&
        new Date(each.created_at) < end,
    )
    // The list is newest first: of one receiver the oldest is kept.
    return [...new Map(about.map((each) => [each.receiver_id, each])).values()]
  }
}
