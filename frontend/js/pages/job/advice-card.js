/** What to do about the findings of a straggling job. */

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

/**
 * The card; `isShown` says whether the page has it.
 *
 * `asked` is the newest question: its address (`key`), steps and facts. `shown` is the question of
 * the answer that is drawn, with the `answer`; null where there is none.
 */
export class AdviceCard {
  constructor({ base, onTracked }) {
    Object.assign(this, { base, onTracked, isShown: false, asked: null, shown: null, error: null })
    this.node = h("section", { class: "card advice", "data-own": true, "aria-label": "What to do" })
    this.form = new FactForm({ onChange: () => this.askWithFacts() })
  }

  /** Show what to do in these windows. */
  show(seen, { steps }) {
    this.isShown = isWanted(seen)
    if (!this.isShown) return
    const newest = newestClosedWindow(seen.ribbon)
    const isOther = closedWindow(seen) !== endsOf(seen.window, seen.result)[1]
    const isMoved = newest !== this.newest || isOther !== this.isOther
    Object.assign(this, { window: closedWindow(seen), steps, newest, isOther })
    if (isMoved && this.asked) this.draw()
    this.ask()
  }

  /** Ask the server, where window, steps or facts have changed; the old answer is dimmed meanwhile. */
  async ask() {
    if (!this.window) {
      Object.assign(this, { asked: null, shown: null, error: null })
      return this.draw()
    }
    const { window, steps } = this
    const facts = readAddress(...FACT_NAMES)
    const query = new URLSearchParams(known({ steps, ...facts }))
    const key = `${this.base}/windows/${encodeURIComponent(window)}/advice?${query}`
    if (this.asked?.key === key) return
    const asked = { key, steps, facts }
    Object.assign(this, { asked, error: null })
    this.draw()
    const found = await getJson(key).catch((error) => error)
    if (this.asked !== asked) return
    if (!(found instanceof Error)) this.shown = { ...asked, answer: found }
    else {
      this.error = found
      // A refused fact is corrected in the fields that the old answer asked for.
      if (found.status !== UNPROCESSABLE) this.shown = null
    }
    this.draw()
  }

  /** Ask with what was typed; said aloud, as the change is above the fields. */
  async askWithFacts() {
    await this.ask()
    const best = this.shown?.answer.fixes[0]
    if (best && !this.isStale) announce(`Best fix: ${contained(best.title)}, ${ratio(best.speed_up)} as fast.`)
  }

  askAgain() {
    this.asked = null
    this.ask()
  }

  /** Leave the page: answers to come are not drawn. */
  remove() {
    this.asked = null
  }

  draw() {
    const { error } = this
    const isRefused = error?.status === UNPROCESSABLE
    const answer = this.shown?.answer ?? null
    const current = error ? null : answer
    this.form.draw({ answer, refusal: isRefused ? sentence(error.message) : "" })
    this.node.setAttribute("aria-busy", String(this.isWaiting))
    this.node.classList.toggle("is-stale", this.isStale)
    // The same nodes in the same order: a field that is moved loses its focus.
    patch(
      this.node,
      adviceHeader(current, this.isOther),
      h("div", { "data-key": "fixes" }, isRefused ? null : this.words()),
      this.form.node,
      current && notAdvised(current),
    )
  }

  /** Whether an answer is to come; an older one may be shown meanwhile. */
  get isWaiting() {
    return Boolean(this.window) && this.shown?.key !== this.asked?.key && !this.error
  }

  /** Whether the answer shown is not that of the newest question. */
  get isStale() {
    return this.shown !== null && this.shown.key !== this.asked?.key
  }

  /** The button that follows a fix; null where the prediction shown cannot be stored. */
  track({ fix, title, can_be_tracked }) {
    const { base, onTracked, isStale } = this
    const { answer, steps, facts } = this.shown
    // Whole windows are followed, from the newest closed one on.
    if (!can_be_tracked || steps || answer.window !== this.newest) return null
    return trackButton({ base, window: answer.window, fix, title, facts, isStale, onTracked })
  }

  words() {
    const { shown, error, isStale } = this
    if (!this.window) return h("p", { class: "quiet" }, NO_CLOSED_WINDOW)
    if (error) return failed(error, () => this.askAgain())
    if (!shown) return h("p", { class: "waiting-fixes quiet" }, "Simulating the job with each fix.")
    return adviceWords(shown.answer, { base: this.base, isStale, track: (fix) => this.track(fix) })
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
  return closedWindowOfRun(ribbon, open.epoch)
}

/** The newest closed window of the newest run, or null. */
function newestClosedWindow(ribbon) {
  return closedWindowOfRun(ribbon, ribbon.bins.at(-1)?.epoch)
}

/** The newest closed window with figures of a run, or null. */
function closedWindowOfRun({ bins }, epoch) {
  return bins.findLast((bin) => !bin.is_open && bin.epoch === epoch && bin.slowdown !== null)?.to ?? null
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
