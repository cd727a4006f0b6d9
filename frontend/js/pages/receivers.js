/** Who is told of alerts, whether that works, and each message with its attempts. */

import { getJson, getJsonOrNull, send } from "../api.js"
import { isFingerprint } from "../components/alert-words.js"
import { attemptWords, messageWords } from "../components/message-words.js"
import { messagesCard } from "../components/messages.js"
import { noteBar } from "../components/note-bar.js"
import { panelFailed } from "../components/panel-failed.js"
import { ReceiverForm } from "../components/receiver-form.js"
import { isIll, receiverName } from "../components/receiver-words.js"
import { receiversCard } from "../components/receivers.js"
import { viewTop } from "../components/views.js"
import { announce, patch, place } from "../dom.js"
import { onChange } from "../live.js"
import { may } from "../scopes.js"
import { choose, chosen } from "../selection.js"
import { clock, contained, whole } from "../words.js"

export const path = /^\/alerts\/receivers$/
export const title = "Receivers"

const PAGE = 20
const MOST = 500
// Attempts to deliver are no events.
const AGAIN_MS = 10_000
// A test is sent within seconds, unless nobody answers: then its row goes on telling.
const TEST_EVERY_MS = 500
const TEST_LOOKS = 30

/** Draw the page into `root`; gives back how to leave. */
export function render(root, _params, app) {
  const page = new ReceiversPage(root, app)
  page.begin()
  return () => page.leave()
}

class ReceiversPage {
  constructor(root, { setSubject, onRefused }) {
    Object.assign(this, { root, setSubject, onRefused, answers: null, error: null, hasLeft: false, asked: 0 })
    this.most = { endpoints: PAGE, messages: PAGE }
    this.doing = { form: null, secret: null, deleting: null, said: null }
    this.form = new ReceiverForm({ onSubmit: (wanted) => this.save(wanted), onClose: () => this.close() })
    this.acts = {
      set: (changes) => this.set(changes),
      add: () => this.open(null),
      edit: ({ endpoint_id }) => this.attempt(endpoint_id, async () => this.open(await getJson(`/endpoints/${endpoint_id}`))),
      forget: () => this.set({ secret: null }),
      test: (endpoint) => this.attempt(endpoint.endpoint_id, () => this.test(endpoint)),
      enable: (endpoint) => this.attempt(endpoint.endpoint_id, () => this.enable(endpoint, "is enabled")),
      tryNow: (endpoint) => this.attempt(endpoint.endpoint_id, () => this.enable(endpoint, "is tried again, with all that waits for it")),
      rotate: (endpoint) => this.attempt(endpoint.endpoint_id, () => this.rotate(endpoint)),
      remove: (endpoint) => this.attempt(endpoint.endpoint_id, () => this.remove(endpoint)),
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
      const answers = await load(this.most.messages)
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
    else if (this.error) patch(this.root, viewTop("Alerts", { sentence: "Receivers" }), panelFailed("Could not load the receivers", this.error, () => this.refresh()))
  }

  set(changes) {
    Object.assign(this.doing, changes)
    this.draw()
  }

  /** Do something to what has this id; a refusal shows beside it. */
  async attempt(id, deed) {
    this.set({ said: null })
    try {
      await deed()
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.set({ said: { id, text: error.message, isRefused: true } })
    }
    if (!this.hasLeft) await this.refresh()
  }

  say(id, text) {
    this.set({ said: { id, text } })
    announce(text)
  }

  open(endpoint) {
    this.form.open(endpoint)
    this.set({ form: endpoint?.endpoint_id ?? "new", said: null })
    this.form.node.querySelector("input").focus()
  }

  close() {
    const { form } = this.doing
    this.set({ form: null })
    this.root.querySelector(form === "new" ? "[data-key=new]" : `[data-key="${form}"] [data-key=edit]`)?.focus()
  }

  async save(wanted) {
    const isNew = this.doing.form === "new"
    try {
      const saved = await (isNew ? send("POST", "/endpoints", wanted) : send("PATCH", `/endpoints/${this.doing.form}`, wanted))
      if (saved.secret) this.doing.secret = { name: saved.name, secret: saved.secret, isNew: true }
      announce(isNew ? "The receiver is added." : "Saved.")
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      return this.form.refuse(error.message)
    }
    this.close()
    await this.refresh()
  }

  async test(endpoint) {
    const { endpoint_id } = endpoint
    const { delivery_id } = await send("POST", `/endpoints/${endpoint_id}/test`)
    this.say(endpoint_id, `A test is on its way to ${receiverName(endpoint)}.`)
    for (let look = 0; look < TEST_LOOKS && !this.hasLeft; look += 1) {
      await new Promise((resolve) => setTimeout(resolve, TEST_EVERY_MS))
      const sent = await getJson(`/deliveries/${delivery_id}`)
      if (sent.state === "due" && !sent.attempts.length) continue
      const last = sent.attempts.at(-1)
      return this.say(endpoint_id, `The test: ${messageWords(sent)}. ${last ? attemptWords(last) : contained(sent.detail ?? "")}`)
    }
  }

  async enable(endpoint, words) {
    const { endpoint_id } = endpoint
    await send("POST", `/endpoints/${endpoint_id}/enable`)
    this.say(endpoint_id, `${receiverName(endpoint)} ${words}.`)
  }

  async rotate({ endpoint_id, name }) {
    const { secret } = await send("POST", `/endpoints/${endpoint_id}/rotate`)
    this.set({ secret: { name, secret, isNew: false } })
    announce("The new secret is shown this once.")
  }

  async remove({ endpoint_id, name }) {
    await send("DELETE", `/endpoints/${endpoint_id}`)
    this.set({ deleting: null })
    announce(`${receiverName({ endpoint_id, name })} is deleted.`)
    this.root.querySelector("[data-key=new]")?.focus()
  }

  content() {
    const { endpoints, messages, one } = this.answers
    const picked = picks()
    return [
      viewTop("Alerts", sentence(endpoints)),
      this.error && noteBar({ fact: `Shown as of ${clock(this.error.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: () => this.refresh() } }),
      receiversCard({ endpoints, most: this.most.endpoints, doing: this.doing, form: place(this.form.node), act: may("admin") && this.acts, onMore: () => this.showMore("endpoints") }),
      messagesCard({
        items: messages.items,
        chosen: picked,
        one: one?.delivery_id === picked.message ? one : null,
        endpoints,
        act: {
          choose: (changes) => (choose(changes), this.refresh()),
          replay: may("write") && ((message) => this.attempt(message.delivery_id, () => this.replay(message))),
        },
        refused: this.doing.said?.isRefused && this.doing.said,
        onMore: messages.next_cursor && this.most.messages < MOST ? () => this.showMore("messages") : null,
      }),
    ]
  }

  async replay({ delivery_id }) {
    await send("POST", `/deliveries/${delivery_id}/replay`)
    announce("The message is sent again.")
  }

  showMore(list) {
    this.most[list] = Math.min(MOST, this.most[list] + PAGE)
    this.refresh()
  }
}

const picks = () => chosen("state", "endpoint", "alert", "message")

async function load(limit) {
  const { state, endpoint, alert, message } = picks()
  const query = new URLSearchParams({ limit, ...(state && { state }), ...(endpoint && { endpoint }), ...(isFingerprint(alert) && { alert }) })
  const [endpoints, messages, one] = await Promise.all([getJson("/endpoints"), getJson(`/deliveries?${query}`), message ? getJsonOrNull(`/deliveries/${encodeURIComponent(message)}`) : null])
  return { endpoints: endpoints.items, messages, one }
}

function sentence(endpoints) {
  const all = endpoints.length
  const ill = endpoints.filter(isIll).length
  if (!all) return { marked: ["warning", "Nobody"], sentence: "Nobody is told of alerts.", sub: "They show on these pages alone." }
  if (!ill) return { marked: ["healthy", "All works"], sentence: all === 1 ? "One receiver is told of alerts." : `${whole(all)} receivers are told of alerts.`, sub: "What is sent arrives." }
  const who = all === 1 ? "The one receiver of alerts" : `${ill === all ? "All" : whole(ill)} of ${whole(all)} receivers`
  return { marked: ["warning", "Failing"], sentence: `${who} cannot be told.`, sub: "What could not be told is kept, and can be sent again." }
}
