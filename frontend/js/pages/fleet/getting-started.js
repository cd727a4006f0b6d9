/** How to send the first steps; shown while there are no jobs. */

import { copyButton } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { send } from "../../lib/api.js"
import { announce, h } from "../../lib/dom.js"
import { may } from "../../lib/session.js"
import { codeOf, WAYS_IN } from "./ways-in.js"

const FIRST_WAY = "PyTorch"
const NO_TOKEN = "pl_..."

/** The first page of a project; `demo` is the page's `Demo`, `redraw()` draws the page again. */
export class GettingStarted {
  constructor(demo, redraw) {
    Object.assign(this, { demo, redraw, way: FIRST_WAY, token: null, refused: null })
  }

  content() {
    const { steps, last, docs } = WAYS_IN[this.way]
    const shown = steps(location.origin, this.token ?? NO_TOKEN)
    return h(
      "div",
      { class: "first-start" },
      h(
        "section",
        { class: "headline" },
        h("h1", {}, "No jobs yet. Send the first steps and they appear here."),
        h(
          "p",
          {},
          "The first figures come with the first complete step: one that the workers have reported. " +
            "A missing worker does not hold up the others: it is named, and medians of its stage stand in.",
        ),
      ),
      h(
        "section",
        { class: "card ways" },
        h(
          "header",
          {},
          this.tabs(),
          copyButton(() => codeOf(steps(location.origin, this.token ?? NO_TOKEN)), { class: "button" }),
        ),
        h(
          "div",
          { id: "way", role: "tabpanel", "aria-label": this.way },
          h(
            "ol",
            {},
            h("li", { "data-key": "token" }, h("b", {}, "Make a token for the job's workers"), this.tokenMaker()),
            shown.map(([act, code]) => h("li", {}, h("b", {}, act), h("pre", {}, h("code", {}, code)))),
            h("li", { "data-key": "last" }, h("b", {}, last), listening()),
          ),
          h("p", { class: "way-docs" }, h("a", { href: `/docs/feeds/${docs}` }, `More on ${this.way}`)),
        ),
      ),
      this.demoCard(),
      nothingArrives(this.token ?? "$PACELINE_TOKEN"),
    )
  }

  tabs() {
    const names = Object.keys(WAYS_IN)
    const choose = (name) => {
      this.way = name
      this.redraw()
    }
    const move = (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
      if (!by) return
      const next = (names.indexOf(this.way) + by + names.length) % names.length
      event.currentTarget.children[next].focus()
      choose(names[next])
    }
    return h(
      "div",
      { class: "segments", role: "tablist", "aria-label": "Ways to send data", onkeydown: move },
      names.map((name) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            "aria-selected": String(name === this.way),
            "aria-controls": "way",
            tabindex: name === this.way ? "0" : "-1",
            onclick: () => choose(name),
          },
          name,
        ),
      ),
    )
  }

  tokenMaker() {
    if (!may("admin"))
      return h("p", { class: "token" }, "Your own token cannot make one: ask for a token with the scope ingest.")
    if (this.token)
      return h(
        "p",
        { class: "token", role: "status" },
        "It is in the commands below, and shown only until this page is left. ",
        h("a", { href: "/settings" }, "All tokens"),
      )
    return h(
      "p",
      { class: "token" },
      h("button", { class: "button", type: "button", onclick: () => this.makeToken() }, "Make a token"),
      h("span", {}, "It may only send data. Tokens with other scopes: ", h("a", { href: "/settings" }, "Settings")),
      this.refused && h("span", { class: "refused", role: "alert" }, this.refused),
    )
  }

  async makeToken() {
    this.refused = null
    try {
      this.token = (await send("POST", "/tokens", { name: "first job", scopes: ["ingest"] })).token
      announce("The token is in the commands below.")
    } catch (error) {
      this.refused = error.message
    }
    this.redraw()
  }

  demoCard() {
    return h(
      "section",
      { class: "card demo" },
      h(
        "div",
        {},
        h("b", {}, "No cluster at hand?"),
        h(
          "span",
          {},
          "See six simulated jobs, live: a healthy one, two on one slow host, of which one recovers, one that hangs, ",
          "one with a long last stage, one with uneven sequence lengths.",
        ),
        this.demo.refusal(),
      ),
      this.demo.canRun() ? this.demoButton() : h("code", {}, "paceline demo"),
    )
  }

  demoButton() {
    if (this.demo.state.running) return h("span", { role: "status" }, "The jobs start; first figures in a few seconds.")
    return h("button", { class: "button", type: "button", onclick: () => this.demo.start() }, "Load the demo")
  }
}

function listening() {
  return h(
    "div",
    { class: "listening" },
    h(
      "span",
      { class: "state" },
      stateIcon("silent"),
      h("span", {}, "Listening on ", h("code", {}, `${location.origin}/api/v1`)),
    ),
    h("span", { class: "quiet" }, "no data received yet"),
  )
}

function nothingArrives(token) {
  return h(
    "div",
    { class: "nothing-arrives" },
    h(
      "p",
      {},
      "No data arrives? The recorder never stops training: it logs why it cannot send on the worker. ",
      "Check from a worker that it reaches this server and that the token is right (authenticated: true):",
    ),
    h("pre", {}, h("code", {}, `curl ${location.origin}/api/v1/session -H "Authorization: Bearer ${token}"`)),
  )
}
