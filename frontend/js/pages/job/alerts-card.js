/** The alerts of a job at the top of its page: what fires, since when, who has it, and what may be done. */

import { AlertActions } from "../../components/alerts/actions.js"
import { alertNotes, isMuted, mutedReasons } from "../../components/alerts/notes.js"
import { worstFirst } from "../../components/alerts/order.js"
import { alertHref, figureOf, ruleWords, stateOf } from "../../components/alerts/words.js"
import { runbookOfAlert } from "../../components/runbook.js"
import { stateIcon } from "../../components/state-icon.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { ago, clock, whole } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const MAX_ALERTS = 50
const MAX_SILENCES = 200
const MAX_ROWS = 4
const NONE = "No alert of this job is firing."
// Texts such as "3 min ago" are redrawn this often.
const REDRAW_MS = 10_000

/** The card; it loads and draws itself into `node` from `begin` until `leave`. */
export class AlertsCard {
  constructor({ jobId, onRefused }) {
    Object.assign(this, { jobId, alerts: null, silences: new Map(), error: null, hasLeft: false, numRequests: 0 })
    this.node = h("section", { class: "card job-alerts", "data-own": true, "aria-label": "Alerts of this job" })
    this.actions = new AlertActions({
      alerts: () => this.alerts ?? [],
      silences: () => this.silences,
      onChange: () => this.refresh(),
      draw: () => this.draw(),
      onRefused,
      rowOf: (fingerprint) => this.node.querySelector(`[data-key="${fingerprint}"]`),
    })
  }

  begin() {
    this.draw()
    this.refresh()
    const timer = setInterval(() => this.draw(), REDRAW_MS)
    const stop = onChange(() => this.refresh(), "alert")
    this.stops = [() => clearInterval(timer), stop]
  }

  leave() {
    this.hasLeft = true
    for (const stop of this.stops) stop()
  }

  /** Load the alerts; an answer to an older request than the newest is dropped, and the newest waited for. */
  refresh() {
    this.newest = this.reload(++this.numRequests)
    return this.newest
  }

  async reload(number) {
    try {
      const query = new URLSearchParams({ job: this.jobId, limit: MAX_ALERTS })
      const { items } = await getJson(`/alerts?${query}`)
      const isSilenced = items.some(({ silenced_by }) => silenced_by.length)
      const silences = isSilenced ? (await getJson(`/silences?limit=${MAX_SILENCES}`)).items : []
      if (number !== this.numRequests) return this.newest
      this.alerts = worstFirst(items)
      this.silences = new Map(silences.map((silence) => [silence.silence_id, silence]))
      this.error = null
    } catch (error) {
      // A job that is not known, or a session that has ended, is said by the page.
      this.error = error
    }
    this.draw()
  }

  draw() {
    if (this.hasLeft) return
    patch(this.node, h("h2", {}, "Alerts"), this.content())
  }

  content() {
    const { alerts, error } = this
    if (!alerts) return h("p", { class: "none" }, error ? `Not loaded: ${error.message}` : "Loading\u2026")
    const firing = alerts.filter(({ phase }) => phase === "firing")
    const open = firing.filter((alert) => !isMuted(alert))
    const muted = firing.filter(isMuted)
    return [
      open.length
        ? this.rows(open)
        : h("p", { class: "none", "data-key": "none" }, muted.length ? "Only muted alerts are firing." : NONE),
      // Always there, so that the first alert moves nothing.
      h(
        "div",
        { class: "below", "data-key": "below" },
        muted.length > 0 && this.muted(muted),
        this.links(Math.max(0, open.length - MAX_ROWS), alerts.length - firing.length),
      ),
    ]
  }

  rows(alerts) {
    return h(
      "ol",
      { "data-key": "rows" },
      alerts.slice(0, MAX_ROWS).map((alert) => this.row(alert)),
    )
  }

  muted(alerts) {
    return h(
      "details",
      { class: "muted", "data-key": "muted" },
      h("summary", {}, `${whole(alerts.length)} muted. ${mutedReasons(alerts, this.known())}`),
      this.rows(alerts),
    )
  }

  /** To those that are not shown, and to what was. */
  links(numMore, numPending) {
    const link = (text, query) => h("a", { href: `/alerts?${new URLSearchParams(query)}` }, text)
    return h(
      "p",
      { class: "links", "data-key": "links" },
      numMore > 0 && link(`${whole(numMore)} more`, { find: this.jobId }),
      numPending > 0 && link(`${whole(numPending)} pending`, { show: "pending", find: this.jobId }),
      link("History", { show: "history", q: this.jobId }),
    )
  }

  known() {
    return { silences: this.silences, alerts: new Map(this.alerts.map((each) => [each.fingerprint, each])) }
  }

  row(alert) {
    const { fingerprint, firing_at, began_at, on, value, acknowledged_at, rule } = alert
    const [markName, word] = stateOf(alert)
    const at = new Date(firing_at ?? began_at)
    return h(
      "li",
      { class: "row", "data-key": fingerprint },
      h("span", { class: "state" }, stateIcon(markName), word),
      h("a", { class: "rule", href: alertHref(fingerprint), title: `Rule ${rule}` }, ruleWords(alert)),
      h("span", { class: "number" }, h("b", {}, figureOf(on, value))),
      h("span", { class: "at" }, `since ${clock(at)}`, h("small", {}, ago(at))),
      h("span", { class: "owner" }, acknowledged_at ? "" : "Not acknowledged"),
      h(
        "div",
        { class: "acts" },
        may("write") && this.actions.buttons(alert),
        h(
          "a",
          { href: runbookOfAlert(alert), target: "_blank", rel: "noreferrer", "data-key": "runbook" },
          "What to do",
        ),
      ),
      h("div", { class: "notes" }, alertNotes(alert, this.known())),
      this.actions.under(alert),
    )
  }
}
