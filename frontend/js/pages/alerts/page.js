/** Active alerts and who acknowledged them, silences, and past transitions. */

import { matchersOf } from "../../components/label-matchers.js"
import { LivePage } from "../../components/live-page.js"
import { pageTop } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { send } from "../../lib/api.js"
import { announce, h, place } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { alertDetails, alertsNow, restingCard } from "./active-alerts.js"
import { historyCard, nowCard } from "./lists.js"
import { loadAlerts, MOST, worstFirst } from "./load.js"
import { SilenceForm, silencesCard } from "./silences.js"
import { alertStats, alertsSentence, receiversCard } from "./summary.js"

export const path = /^\/alerts$/
export const title = "Alerts"

const PAGE = 20
const TYPING_MS = 250
// Where the form of a silence is open that belongs to no alert.
const PLAN = "plan"

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, app) {
  const page = new AlertsPage(root, app)
  page.begin()
  return () => page.leave()
}

class AlertsPage extends LivePage {
  constructor(root, app) {
    super(root, app, { subject: "Alerts", title: "Alerts" })
    this.most = { now: PAGE, history: PAGE, silences: PAGE }
    // Where the form of a silence is open, and what was refused where.
    Object.assign(this, { formAt: null, refused: null })
    this.form = new SilenceForm({
      onSubmit: (silence) => this.silence(silence),
      onClose: () => this.close(),
      alerts: () => this.answers.active.items,
    })
    this.acts = {
      choose: (changes) => {
        updateAddress(changes)
        this.refresh()
      },
      find: typed((find) => this.acts.choose({ find })),
      type: typed((q) => this.acts.choose({ q })),
    }
  }

  load() {
    return loadAlerts(this.most)
  }

  /** Change something; a refusal shows at `id`. */
  async change(id, request, said) {
    this.refused = null
    const isDone = await this.attempt(request, (error) => {
      this.refused = { id, text: error.message }
    })
    if (isDone) announce(said)
    if (!this.hasLeft) await this.refresh()
  }

  acknowledge(alert, method, said) {
    return this.change(
      alert.fingerprint,
      () => send(method, `/alerts/${alert.fingerprint}/acknowledge`),
      `${said}: ${contained(alert.rule)} on ${contained(alert.job_id)}.`,
    )
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
    const isDone = await this.attempt(
      () => send("POST", "/silences", wanted),
      (error) => this.form.refuse(error.message),
    )
    if (!isDone) return
    announce("Silenced.")
    this.close()
    await this.refresh()
  }

  content() {
    const { active, past, silences, endpoints, rules } = this.answers
    return [
      pageTop("Alerts", alertsSentence(active, rules)),
      this.staleNote(),
      alertStats(active, endpoints),
      this.resting(),
      h(
        "div",
        { class: "alerts", "data-key": "alerts" },
        h(
          "div",
          { class: "column" },
          this.now(),
          historyCard({
            past,
            act: this.acts,
            onMore: past.next_cursor && this.most.history < MOST ? () => this.showMore("history") : null,
          }),
        ),
        h("div", { class: "column" }, this.silences(silences), receiversCard(endpoints)),
      ),
    ]
  }

  /** The alert that a link names, once it is no longer active. */
  resting() {
    const { alert: fingerprint } = readAddress("alert")
    const { one } = this.answers
    if (!fingerprint || one?.alert) return null
    return restingCard(fingerprint, one?.history ?? [], () => this.acts.choose({ alert: null }))
  }

  now() {
    const { now, one } = this.answers
    const { alert: fingerprint } = readAddress("alert")
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
    return nowCard({
      rows: shown.length ? rows : null,
      act: this.acts,
      onMore: now.items.length > this.most.now && this.most.now < MOST ? () => this.showMore("now") : null,
    })
  }

  known() {
    const { active, silences, notified } = this.answers
    return {
      silences: new Map(silences.items.map((silence) => [silence.silence_id, silence])),
      alerts: new Map(active.items.map((alert) => [alert.fingerprint, alert])),
      notified,
    }
  }

  under({ fingerprint }) {
    return [
      this.refused?.id === fingerprint &&
        h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refused.text),
      this.formAt === fingerprint && place(this.form.node),
    ]
  }

  silences(silences) {
    const act = {
      plan: () => this.open(PLAN, [], { isPlanned: true }),
      end: ({ silence_id }) =>
        this.change(silence_id, () => send("DELETE", `/silences/${silence_id}`), "The silence has ended."),
    }
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
