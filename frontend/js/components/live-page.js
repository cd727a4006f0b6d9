/** What the pages of alerts and receivers have in common: loading, staying up to date, and failed requests. */

import { patch } from "../lib/dom.js"
import { onChange } from "../lib/events.js"
import { panelFailed, staleNote } from "./notices.js"
import { pageTop } from "./page-head.js"

// Delivery attempts send no events; this also keeps "3 s ago" up to date.
const RELOAD_MS = 10_000

/** A subclass has `load()`, which returns the server's answers, and `content()`, which draws `this.answers`. */
export class LivePage {
  /** `subject` has the page's tabs; `title` heads the page while there is nothing to draw. */
  constructor(root, { setSubject, onRefused }, { subject, title }) {
    Object.assign(this, { root, setSubject, onRefused, subject, title })
    Object.assign(this, { answers: null, error: null, hasLeft: false, numRequests: 0 })
  }

  begin() {
    this.setSubject({ kind: this.subject.toLowerCase() })
    this.refresh()
    this.stop = onChange(() => this.refresh(), "alert")
    this.timer = setInterval(() => this.refresh(), RELOAD_MS)
  }

  leave() {
    this.hasLeft = true
    clearInterval(this.timer)
    this.stop()
  }

  /** Load and draw; an answer to an older request than the newest is dropped, and the newest waited for. */
  refresh() {
    this.newest = this.reload(++this.numRequests)
    return this.newest
  }

  async reload(number) {
    try {
      const answers = await this.load()
      if (number !== this.numRequests) return this.newest
      Object.assign(this, { answers, error: null })
    } catch (error) {
      if (error.status === 401) return this.onRefused()
      this.error = error
    }
    this.draw()
  }

  draw() {
    if (this.hasLeft) return
    if (this.answers) patch(this.root, this.content())
    else if (this.error) patch(this.root, pageTop(this.subject, { sentence: this.title }), this.failure())
  }

  failure() {
    return panelFailed(`Could not load the ${this.title.toLowerCase()}`, this.error, () => this.refresh())
  }

  /** A bar while the newest request has failed and older answers are shown. */
  staleNote() {
    return this.error && staleNote(this.error, () => this.refresh())
  }

  /** Change something on the server; false where it was refused, after `onFailure(error)`. */
  async attempt(change, onFailure) {
    try {
      await change()
      return true
    } catch (error) {
      if (error.status === 401) this.onRefused()
      else onFailure(error)
      return false
    }
  }
}
