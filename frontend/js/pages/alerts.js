/** What fires now and who looks after it, what is silenced, and what fired before. */

import { send } from "../api.js"
import { alertDetails, restingCard } from "../components/alert-details.js"
import { historyCard, nowCard } from "../components/alert-lists.js"
import { alertsNow } from "../components/alert-now.js"
import { alertStats, alertsSentence } from "../components/alert-stats.js"
import { matchersOf } from "../components/matchers.js"
import { noteBar } from "../components/note-bar.js"
import { panelFailed } from "../components/panel-failed.js"
import { SilenceForm } from "../components/silence-form.js"
import { silencesCard } from "../components/silences.js"
import { toldCard } from "../components/told.js"
import { viewTop } from "../components/views.js"
import { announce, h, patch, place } from "../dom.js"
import { onChange } from "../live.js"
import { may } from "../scopes.js"
import { choose, chosen } from "../selection.js"
import { clock, contained } from "../words.js"
import { MOST, loadAlerts, worstFirst } from "./alert-load.js"

export const path = /^\/alerts$/
export const title = "Alerts"

const PAGE = 20
// Attempts to deliver are no events; this keeps their times and "3 s ago" from going stale.
const AGAIN_MS = 10_000
const TYPING_MS = 250
// Of a silence that begins elsewhere on the page than at an alert.
const PLAN = "plan"

/** Draw the page into `root`; gives back how to leave. */
export function render(root, _params, app) {
  const page = new AlertsPage(root, app)
  page.begin()
  return () => page.leave()
}

class AlertsPage {
  constructor(root, { setSubject, onRefused }) {
    Object.assign(this, { root, setSubject, onRefused, answers: null, error: null, hasLeft: false, asked: 0 })
    this.most = { now: PAGE, history: PAGE, silences: PAGE }
    // Where the form of a silence is open, and what was refused where.
    Object.assign(this, { formAt: null, refused: null })
    this.form = new SilenceForm({ onSubmit: (silence) => this.silence(silence), onClose: () => this.close(), alerts: () => this.answers.active.items })
    this.acts = {
      choose: (changes) => (choose(changes), this.refresh()),
      find: typed((find) => this.acts.choose({ find })),
      type: typed((q) => this.acts.choose({ q })),
    }
  }

  begin() {
    this.setSubject({ kind: "alerts" })
    this.refresh()
    this.stop = onChange(() => this.refresh(), "alert")
    this.timer = setInterval(() => this.refresh(), AGAIN_MS)
  }

  leave() {
    this.hasLeft = true
    clearInterval(this.timer)
    this.stop()
  }

  async refresh() {
    const asked = ++this.asked
    try {
      const answers = await loadAlerts(this.most)
      // An answer to what the reader has changed since is none.
      if (asked === this.asked) Object.assign(this, { answers, error: null })
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.error = error
    }
    this.draw()
  }

  draw() {
    if (this.hasLeft) return
    if (this.answers) patch(this.root, this.content())
    else if (this.error) patch(this.root, viewTop("Alerts", { sentence: "Alerts" }), panelFailed("Could not load the alerts", this.error, () => this.refresh()))
  }

  /** Do something that changes; a refusal shows where it was asked for. */
  async change(at, deed, said) {
    this.refused = null
    try {
      await deed()
      announce(said)
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.refused = { id: at, text: error.message }
    }
    if (!this.hasLeft) await this.refresh()
  }

  acknowledge(alert, method, said) {
    return this.change(alert.fingerprint, () => send(method, `/alerts/${alert.fingerprint}/acknowledge`), `${said}: ${contained(alert.rule)} on ${contained(alert.job_id)}.`)
  }

  open(at, matchers, options) {
    Object.assign(this, { formAt: at, refused: null })
    this.form.open(matchers, options)
    this.draw()
    this.form.node.querySelector("input, button").focus()
  }

  close() {
    const at = this.formAt
    this.formAt = null
    this.draw()
    this.root.querySelector(at === PLAN ? "[data-key=plan]" : `[data-key="${at}"] [data-key=silence]`)?.focus()
  }

  async silence(wanted) {
    try {
      await send("POST", "/silences", wanted)
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      return this.form.refuse(error.message)
    }
    announce("Silenced.")
    this.close()
    await this.refresh()
  }

  content() {
    const { active, past, silences, endpoints, rules } = this.answers
    return [
      viewTop("Alerts", alertsSentence(active, rules)),
      this.error && noteBar({ fact: `Shown as of ${clock(this.error.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: () => this.refresh() } }),
      alertStats(active, endpoints),
      this.resting(),
      h(
        "div",
        { class: "alerts", "data-key": "alerts" },
        h("div", { class: "column" }, this.now(), historyCard({ past, act: this.acts, onMore: past.next_cursor && this.most.history < MOST ? () => this.showMore("history") : null })),
        h("div", { class: "column" }, this.silences(silences), toldCard(endpoints)),
      ),
    ]
  }

  /** The alert that a link names, once it is at rest. */
  resting() {
    const { alert: fingerprint } = chosen("alert")
    const { one } = this.answers
    if (!fingerprint || one?.alert) return null
    return restingCard(fingerprint, one?.history ?? [], () => this.acts.choose({ alert: null }))
  }

  now() {
    const { now, one } = this.answers
    const { alert: fingerprint } = chosen("alert")
    const shown = worstFirst(now.items).slice(0, this.most.now)
    // Who follows a link sees its alert, however far down it is.
    if (one?.alert && !shown.some((alert) => alert.fingerprint === fingerprint)) shown.unshift(one.alert)
    const rows = alertsNow(shown, {
      known: this.known(),
      chosen: fingerprint,
      details: one?.alert && alertDetails(one.alert, one.history),
      act: may("write") && {
        acknowledge: (alert) => this.acknowledge(alert, "POST", "Acknowledged"),
        takeBack: (alert) => this.acknowledge(alert, "DELETE", "No longer acknowledged"),
        silence: (alert) => this.open(alert.fingerprint, matchersOf(alert.labels)),
      },
      choose: (alert) => this.acts.choose({ alert }),
      under: (alert) => this.under(alert),
    })
    return nowCard({ rows: shown.length ? rows : null, act: this.acts, onMore: now.items.length > this.most.now && this.most.now < MOST ? () => this.showMore("now") : null })
  }

  known() {
    const { active, silences, told } = this.answers
    return {
      silences: new Map(silences.items.map((silence) => [silence.silence_id, silence])),
      alerts: new Map(active.items.map((alert) => [alert.fingerprint, alert])),
      told,
    }
  }

  under({ fingerprint }) {
    return [
      this.refused?.id === fingerprint && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refused.text),
      this.formAt === fingerprint && place(this.form.node),
    ]
  }

  silences(silences) {
    const act = { plan: () => this.open(PLAN, [], { isPlanned: true }), end: ({ silence_id }) => this.change(silence_id, () => send("DELETE", `/silences/${silence_id}`), "The silence has ended.") }
    return silencesCard({
      silences: { ...silences, items: silences.items.slice(0, this.most.silences) },
      act: may("write") && act,
      form: this.formAt === PLAN && place(this.form.node),
      refused: this.refused,
      onMore: silences.items.length > this.most.silences ? () => this.showMore("silences") : null,
    })
  }

  showMore(list) {
    this.most[list] = Math.min(MOST, this.most[list] + PAGE)
    this.refresh()
  }
}

/** Call `act` with the text of a field once the reader pauses. */
function typed(act) {
  let timer = null
  return (event) => {
    const { value } = event.target
    clearTimeout(timer)
    timer = setTimeout(() => act(value.trim()), TYPING_MS)
  }
}
