/** Receivers of alerts, whether they work, and each notification with its delivery attempts. */

import {
  attemptWords,
  failingFirst,
  notificationState,
  receiverName,
  receiversSummary,
} from "../../components/alerts/receiver-words.js"
import { isFingerprint } from "../../components/alerts/words.js"
import { LivePage } from "../../components/live-page.js"
import { pageTop } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull, send } from "../../lib/api.js"
import { announce, place } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { ReceiverForm } from "./form.js"
import { linksNote } from "./links-note.js"
import { receiversCard } from "./list.js"
import { notificationsCard } from "./notifications.js"
import { recipesCard } from "./recipes.js"

const PAGE = 20
const MOST = 500
// A test is delivered or fails within seconds; after this long, its row shows what comes of it.
const TEST_EVERY_MS = 500
const TEST_LOOKS = 30

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, app) {
  const page = new ReceiversPage(root, app)
  page.begin()
  return () => page.leave()
}

class ReceiversPage extends LivePage {
  constructor(root, app) {
    super(root, app, { subject: "Alerts", title: "Receivers" })
    this.most = { endpoints: PAGE, messages: PAGE }
    this.state = { form: null, secret: null, deleting: null, said: null }
    this.form = new ReceiverForm({
      onSubmit: (wanted) => this.save(wanted),
      onTest: (wanted) => this.testUnsaved(wanted),
      onClose: () => this.close(),
    })
    this.acts = {
      set: (changes) => this.set(changes),
      add: () => this.open(null),
      use: (recipe) => this.open(null, recipe),
      edit: ({ receiver_id }) =>
        this.change(receiver_id, async () => this.open(await getJson(`/receivers/${receiver_id}`))),
      forget: () => this.set({ secret: null }),
      test: (endpoint) => this.change(endpoint.receiver_id, () => this.test(endpoint)),
      enable: (endpoint) => this.change(endpoint.receiver_id, () => this.enable(endpoint, "is enabled")),
      tryNow: (endpoint) =>
        this.change(endpoint.receiver_id, () =>
          this.enable(endpoint, "is being retried, with its pending notifications"),
        ),
      rotate: (endpoint) => this.change(endpoint.receiver_id, () => this.rotate(endpoint)),
      remove: (endpoint) => this.change(endpoint.receiver_id, () => this.remove(endpoint)),
    }
  }

  load() {
    return load(this.most.messages)
  }

  set(changes) {
    Object.assign(this.state, changes)
    this.draw()
  }

  /** Change the receiver or notification with this id; a refusal shows beside it. */
  async change(id, request) {
    this.set({ said: null })
    await this.attempt(request, (error) => this.set({ said: { id, text: error.message, isRefused: true } }))
    if (!this.hasLeft) await this.refresh()
  }

  say(id, text) {
    this.set({ said: { id, text } })
    announce(text)
  }

  /** Open the form of a receiver; of a new one with what a recipe fills in. */
  open(endpoint, recipe = null) {
    this.form.open(endpoint, recipe)
    this.set({ form: endpoint?.receiver_id ?? "new", said: null })
    this.form.node.querySelector("input").focus()
  }

  close() {
    const { form } = this.state
    this.set({ form: null })
    this.root.querySelector(form === "new" ? "[data-key=new]" : `[data-key="${form}"] [data-key=edit]`)?.focus()
  }

  async save(wanted) {
    const isNew = this.state.form === "new"
    const isDone = await this.attempt(
      async () => {
        const saved = await (isNew
          ? send("POST", "/receivers", wanted)
          : send("PATCH", `/receivers/${this.state.form}`, wanted))
        if (saved.secret) this.state.secret = { name: saved.name, secret: saved.secret, isNew: true }
      },
      (error) => this.form.refuse(error.message),
    )
    if (!isDone) return
    announce(isNew ? "The receiver is added." : "Saved.")
    this.close()
    await this.refresh()
  }

  /** Send a test with what is in the form, which is not saved; what came of it, null where it was refused. */
  async testUnsaved(wanted) {
    const { form } = this.state
    const path = form === "new" ? "/receiver-tests" : `/receivers/${form}/test-change`
    let found = null
    await this.attempt(
      async () => {
        found = await send("POST", path, wanted)
      },
      (error) => this.form.refuse(error.message),
    )
    return found
  }

  async test(endpoint) {
    const { receiver_id } = endpoint
    const { delivery_id } = await send("POST", `/receivers/${receiver_id}/test`)
    this.say(receiver_id, `A test is on its way to ${receiverName(endpoint)}.`)
    for (let look = 0; look < TEST_LOOKS && !this.hasLeft; look += 1) {
      await new Promise((resolve) => setTimeout(resolve, TEST_EVERY_MS))
      const sent = await getJson(`/deliveries/${delivery_id}`)
      if (sent.state === "due" && !sent.attempts.length) continue
      const last = sent.attempts.at(-1)
      return this.say(
        receiver_id,
        `The test: ${notificationState(sent)}. ${last ? attemptWords(last) : contained(sent.detail ?? "")}`,
      )
    }
  }

  async enable(endpoint, words) {
    const { receiver_id } = endpoint
    await send("POST", `/receivers/${receiver_id}/enable`)
    this.say(receiver_id, `${receiverName(endpoint)} ${words}.`)
  }

  async rotate({ receiver_id, name }) {
    const { secret } = await send("POST", `/receivers/${receiver_id}/rotate`)
    this.set({ secret: { name, secret, isNew: false } })
    announce("The new secret is shown only once.")
  }

  async remove({ receiver_id, name }) {
    await send("DELETE", `/receivers/${receiver_id}`)
    this.set({ deleting: null })
    announce(`${receiverName({ receiver_id, name })} is deleted.`)
    this.root.querySelector("[data-key=new]")?.focus()
  }

  content() {
    const { endpoints, messages, one, settings } = this.answers
    const picked = picks()
    return [
      pageTop("Alerts", receiversSummary(endpoints)),
      this.staleNote(),
      linksNote(settings),
      receiversCard({
        endpoints: failingFirst(endpoints),
        most: this.most.endpoints,
        state: this.state,
        form: place(this.form.node),
        act: may("admin") && this.acts,
        onMore: () => this.showMore("endpoints"),
      }),
      recipesCard(may("admin") && this.acts),
      notificationsCard({
        items: messages.items,
        chosen: picked,
        one: one?.delivery_id === picked.message ? one : null,
        endpoints,
        act: {
          choose: (changes) => {
            updateAddress(changes)
            this.refresh()
          },
          replay: may("write") && ((message) => this.change(message.delivery_id, () => this.replay(message))),
        },
        refused: this.state.said?.isRefused && this.state.said,
        onMore: messages.next_cursor && this.most.messages < MOST ? () => this.showMore("messages") : null,
      }),
    ]
  }

  async replay({ delivery_id }) {
    await send("POST", `/deliveries/${delivery_id}/replay`)
    announce("The notification is being sent again.")
  }

  showMore(list) {
    this.most[list] = Math.min(MOST, this.most[list] + PAGE)
    this.refresh()
  }
}

const picks = () => readAddress("state", "endpoint", "alert", "message")

async function load(limit) {
  const { state, endpoint, alert, message } = picks()
  const query = new URLSearchParams({
    limit,
    ...(state && { state }),
    ...(endpoint && { receiver: endpoint }),
    ...(isFingerprint(alert) && { alert }),
  })
  const [endpoints, messages, one, settings] = await Promise.all([
    getJson("/receivers"),
    getJson(`/deliveries?${query}`),
    message ? getJsonOrNull(`/deliveries/${encodeURIComponent(message)}`) : null,
    getJson("/settings"),
  ])
  return { endpoints: endpoints.items, messages, one, settings }
}
