/** A link to a frozen snapshot of the figures shown: how long it opens, and its address, shown once. */

import { shownOnce } from "../../components/buttons.js"
import { send } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"

const DAYS = [
  [1, "1 day"],
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
]
const USUAL_DAYS = 7

const OPENS_FOR = {
  anyone: "Anyone who has this link can open it until it expires. It is shown only once.",
  "signed-in": "Opens for people who are signed in to this project, until it expires. It is shown only once.",
}

/** The box under the head of the page; `shown()` gives what the page shows, as the API takes it. */
export class ShareBox {
  constructor({ base, shown, onRefused }) {
    Object.assign(this, { base, shown, onRefused, isOpen: false, isBusy: false, made: null, refusal: "" })
    this.node = h("section", { class: "share-box", "data-own": true, "aria-label": "Share", hidden: true })
  }

  toggle() {
    Object.assign(this, { isOpen: !this.isOpen, made: null, refusal: "" })
    this.draw()
    if (this.isOpen) this.node.querySelector("select").focus()
  }

  close() {
    Object.assign(this, { isOpen: false, made: null })
    this.draw()
  }

  draw() {
    this.node.hidden = !this.isOpen
    this.node.classList.toggle("card", this.isOpen)
    patch(this.node, this.isOpen && (this.made ? this.link() : this.form()))
  }

  link() {
    const { path, opens_for } = this.made
    return shownOnce({
      words: OPENS_FOR[opens_for],
      text: new URL(path, location.origin).href,
      onDone: () => this.close(),
    })
  }

  form() {
    return h(
      "form",
      { class: "form", "data-key": "form", onsubmit: (event) => this.submit(event) },
      h("h2", {}, "Share a snapshot"),
      h(
        "p",
        { class: "quiet" },
        "The link shows these figures as they are now, also after the data has expired. ",
        "Links are listed in ",
        h("a", { href: "/settings" }, "Settings"),
        ", where they can be revoked.",
      ),
      h(
        "div",
        { class: "fields" },
        h(
          "label",
          {},
          h("b", {}, "Expires after"),
          h(
            "select",
            { class: "field", name: "days" },
            DAYS.map(([value, text]) => h("option", { value, selected: value === USUAL_DAYS }, text)),
          ),
        ),
      ),
      this.refusal && h("p", { class: "refused", role: "alert" }, this.refusal),
      h(
        "div",
        { class: "acts" },
        h("button", { class: "button is-primary", type: "submit", disabled: this.isBusy }, "Create the link"),
        h("button", { class: "button", type: "button", onclick: () => this.close() }, "Cancel"),
      ),
    )
  }

  async submit(event) {
    event.preventDefault()
    const expires_days = Number(event.target.elements.days.value)
    Object.assign(this, { isBusy: true, refusal: "" })
    this.draw()
    try {
      this.made = await send("POST", `${this.base}/shares`, { ...this.shown(), expires_days })
      announce("The link is created. It is shown only once.")
    } catch (error) {
      if (error.status === 401) this.onRefused()
      this.refusal = error.message
    }
    this.isBusy = false
    this.draw()
  }
}
