/** The demo's simulated jobs: whether this server can run them, starting and stopping them. */

import { getJson, send } from "../../lib/api.js"
import { h } from "../../lib/dom.js"
import { clock } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

/** The demo's state as the API has it, asked for once; `redraw()` draws the page again. */
export class Demo {
  constructor(redraw) {
    Object.assign(this, { redraw, state: null, refused: null })
    this.take(getJson("/demo"), { isQuiet: true }) // without an answer there is just no button
  }

  /** Whether a button can start it. */
  canRun() {
    return Boolean(this.state?.available && may("admin"))
  }

  start() {
    return this.take(send("POST", "/demo"))
  }

  stop() {
    return this.take(send("DELETE", "/demo"))
  }

  async take(answer, { isQuiet = false } = {}) {
    this.refused = null
    try {
      this.state = await answer
    } catch (error) {
      this.refused = isQuiet ? null : error.message
    }
    this.redraw()
  }

  refusal() {
    return this.refused && h("span", { class: "refused", role: "alert" }, this.refused)
  }

  /** The line under the fleet's table; null while no demo runs. */
  line() {
    if (!this.state?.running) return null
    return h(
      "p",
      { class: "demo-line", "data-key": "demo" },
      `The demo's simulated jobs end by themselves at ${clock(new Date(this.state.ends_at))}. `,
      may("admin") &&
        h("button", { class: "text-button", type: "button", onclick: () => this.stop() }, "Stop the demo"),
      this.refusal(),
    )
  }
}
