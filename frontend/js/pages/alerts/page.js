/** Alerts by job with what may be done about them, silences, and past transitions. */

import { AlertActions } from "../../components/alerts/actions.js"
import { byJob } from "../../components/alerts/order.js"
import { SilenceForm } from "../../components/alerts/silence-form.js"
import { LivePage } from "../../components/live-page.js"
import { pageTop } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { send } from "../../lib/api.js"
import { announce, h, place } from "../../lib/dom.js"
import { whole } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { alertDetails, alertGroups, restingCard } from "./active-alerts.js"
import { activeCard, historyCard, LISTS, listTabs } from "./lists.js"
import { loadAlerts, MOST } from "./load.js"
import { silencesCard } from "./silences.js"
import { alertStats, alertsSentence, receiversCard } from "./summary.js"

const PAGE = 20
const TYPING_MS = 250

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
    // Whether the form of a silence that belongs to no alert is open, and what was refused where.
    Object.assign(this, { isPlanning: false, refused: null })
    this.actions = new AlertActions({
      alerts: () => this.answers.active.items,
      silences: () => this.known().silences,
      onChange: () => this.hasLeft || this.refresh(),
      draw: () => this.draw(),
      onRefused: app.onRefused,
      rowOf: (fingerprint) => root.querySelector(`.now-rows [data-key="${fingerprint}"]`),
    })
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
      show: (show) => {
        updateAddress({ show: show === LISTS[0] ? null : show, alert: null }, { isStep: true })
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

  plan() {
    Object.assign(this, { isPlanning: true, refused: null })
    this.form.open([], { isPlanned: true })
    this.draw()
    this.form.focus()
  }

  close() {
    this.isPlanning = false
    this.draw()
    this.root.querySelector("[data-key=plan]")?.focus()
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
        h("div", { class: "column" }, past ? this.past() : this.now()),
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

  past() {
    const { past } = this.answers
    const onMore = past.next_cursor && this.most.history < MOST ? () => this.showMore("history") : null
    return historyCard({ past, tabs: this.tabs(), act: this.acts, onMore })
  }

  now() {
    const { now, one } = this.answers
    const { alert: fingerprint } = readAddress("alert")
    const groups = byJob(now)
    const shown = firstGroups(groups, this.most.now)
    // Who follows a link sees its alert, however far down it is.
    const isShown = (group) => [...group.open, ...group.muted].some((alert) => alert.fingerprint === fingerprint)
    if (one?.alert && !shown.some(isShown)) shown.unshift(groups.find(isShown) ?? byJob([one.alert])[0])
    const drawn = alertGroups(shown, {
      known: this.known(),
      chosen: fingerprint,
      details: one?.alert && alertDetails(one.alert, one.history),
      actions: may("write") ? this.actions : null,
      choose: (alert) => this.acts.choose({ alert }),
    })
    return activeCard({
      groups: shown.length ? drawn : null,
      tabs: this.tabs(),
      act: this.acts,
      onMore: groups.length > shown.length && this.most.now < MOST ? () => this.showMore("now") : null,
    })
  }

  tabs() {
    const { items, next_cursor } = this.answers.active
    const count = (wanted) => `${whole(items.filter(({ phase }) => phase === wanted).length)}${next_cursor ? "+" : ""}`
    return listTabs({ firing: count("firing"), pending: count("pending") }, this.acts)
  }

  known() {
    const { active, silences, notified } = this.answers
    return {
      silences: new Map(silences.items.map((silence) => [silence.silence_id, silence])),
      alerts: new Map(active.items.map((alert) => [alert.fingerprint, alert])),
      notified,
    }
  }

  silences(silences) {
    const act = {
      plan: () => this.plan(),
      end: ({ silence_id }) =>
        this.change(silence_id, () => send("DELETE", `/silences/${silence_id}`), "The silence has ended."),
    }
    return silencesCard({
      silences: { ...silences, items: silences.items.slice(0, this.most.silences) },
      act: may("write") && act,
      form: this.isPlanning && place(this.form.node),
      refused: this.refused,
      onMore: silences.items.length > this.most.silences ? () => this.showMore("silences") : null,
    })
  }

  showMore(list) {
    this.most[list] = Math.min(MOST, this.most[list] + PAGE)
    this.refresh()
  }
}

/** Whole groups, until there are so many alerts. */
function firstGroups(groups, most) {
  let number = 0
  return groups.filter(({ open, muted }) => {
    const isShown = number < most
    number += open.length + muted.length
    return isShown
  })
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
