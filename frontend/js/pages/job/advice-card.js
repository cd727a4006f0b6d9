/** The first card of a straggling job: what to do about it. */

import { trackButton } from "../../components/fix-history.js"
import { readAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"
import { capitalized, contained, ratio, tidy } from "../../lib/formatting.js"
import { FACT_NAMES, FactForm } from "./advice-facts.js"
import { adviceHeader, adviceWords, notAdvised } from "./advice-words.js"
import { endsOf } from "./load.js"

const NO_CLOSED_WINDOW = "Fixes are simulated with the steps of a closed window; none of this run has closed yet."
const UNPROCESSABLE = 422

/** The card; `isShown` says whether the page has it. */
export class AdviceCard {
  constructor({ base, onTracked }) {
    Object.assign(this, { base, onTracked, isShown: false, key: null, answer: null, error: null })
    this.node = h("section", { class: "card advice", "data-own": true, "aria-label": "What to do" })
    this.form = new FactForm({ onChange: () => this.askWithFacts() })
  }

  /** Show what to do in these windows. */
  show(seen, { steps }) {
    this.isShown = isWanted(seen)
    if (!this.isShown) return
    this.window = closedWindow(seen)
    this.steps = steps
    this.isOther = this.window !== endsOf(seen.window, seen.result)[1]
    this.ask()
  }

  /** Ask the server, where window, steps or facts have changed; the answer before stays meanwhile. */
  async ask() {
    if (!this.window) {
      Object.assign(this, { key: null, answer: null, error: null })
      return this.draw()
    }
    const { window, steps } = this
    const query = new URLSearchParams(known({ steps, ...readAddress(...FACT_NAMES) }))
    const key = `${this.base}/windows/${encodeURIComponent(window)}/advice?${query}`
    if (this.key === key) return
    this.key = key
    this.draw()
    const found = await getJson(key).catch((error) => error)
    if (this.key !== key) return
    if (found instanceof Error) this.error = found
    else Object.assign(this, { error: null, answer: found })
    this.draw()
  }

  /** Ask with what was typed; said aloud, as the change is above the fields. */
  async askWithFacts() {
    await this.ask()
    const best = this.answer?.fixes[0]
    if (best && !this.error) announce(`Best fix: ${contained(best.title)}, ${ratio(best.speed_up)} as fast.`)
  }

  askAgain() {
    this.key = null
    this.ask()
  }

  /** Leave the page: answers to come are not drawn. */
  remove() {
    this.key = null
  }

  draw() {
    const { answer, error } = this
    const isRefused = error?.status === UNPROCESSABLE
    this.form.draw({ answer, refusal: isRefused ? sentence(error.message) : "" })
    this.node.setAttribute("aria-busy", String(this.isWaiting))
    // The same nodes in the same order: a field that is moved loses its focus.
    patch(
      this.node,
      adviceHeader(answer, this.isOther),
      h("div", { "data-key": "fixes" }, isRefused ? null : this.words()),
      this.form.node,
      answer && notAdvised(answer),
    )
  }

  get isWaiting() {
    return Boolean(this.window) && !this.answer && !this.error
  }

  track({ fix, title }, window) {
    const { base, onTracked } = this
    return trackButton({ base, window, fix, title, facts: () => readAddress(...FACT_NAMES), onTracked })
  }

  words() {
    const { answer, error } = this
    if (!this.window) return h("p", { class: "quiet" }, NO_CLOSED_WINDOW)
    if (this.isWaiting) return h("p", { class: "waiting-fixes quiet" }, "Simulating the job with each fix.")
    return error
      ? failed(error, () => this.askAgain())
      : adviceWords(answer, this.base, (fix, window) => this.track(fix, window))
  }
}

/** Whether there is a cause to do something about. */
function isWanted({ result, summary }) {
  if (["healthy", "low-fidelity", "not-analysed"].includes(summary.state)) return false
  return Boolean(result?.findings?.length) && result.fidelity?.verdict !== "low"
}

/** The last window shown; where that is open, the newest closed one of its run, or null. */
function closedWindow({ ribbon, result, window }) {
  const last = endsOf(window, result)[1]
  const open = ribbon.bins.find((bin) => bin.is_open && bin.to === last)
  if (!open) return last
  const closed = ribbon.bins.filter((bin) => !bin.is_open && bin.epoch === open.epoch && bin.slowdown !== null)
  return closed.at(-1)?.to ?? null
}

const known = (values) => Object.entries(values).filter(([, value]) => value)

function failed(error, retry) {
  const why = error.status ? sentence(error.message) : "The server did not answer."
  return [
    h("p", { role: "alert" }, why),
    h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  ]
}

const sentence = (text) => tidy(`${capitalized(text).replace(/\.$/, "")}.`)
