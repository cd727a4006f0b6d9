/** The menu of saved views: a name for the filters and the order that are in the address. */

import { menu } from "../../components/menu.js"
import { toast } from "../../components/toast.js"
import { getJson, send } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

/** Parameters of the address that a view holds. */
export const VIEW_PARAMETERS = ["q", "state", "lifecycle", "cause", "order", "dir"]

/** The menu as a node that updates itself. */
export class SavedViews {
  /** `asked()` gives the filters in the address; `onopen(query)` shows those of a view. */
  constructor({ asked, onopen }) {
    Object.assign(this, { asked, onopen, views: [], refusal: null })
    this.node = h("span", { class: "saved-views", "data-own": true })
    this.field = h("input", {
      class: "field",
      "aria-label": "Name of the view",
      placeholder: "Name of this view",
      maxlength: 100,
      autocomplete: "off",
    })
    this.load()
  }

  async load() {
    const answer = await getJson("/views").catch(() => null)
    if (answer) this.views = answer.items
    this.draw()
  }

  draw() {
    const query = this.asked()
    const now = JSON.stringify(sorted(query))
    const chosen = this.views.find((view) => JSON.stringify(sorted(view.query)) === now)
    patch(
      this.node,
      menu(
        { class: "is-list", "data-key": "views" },
        h("summary", { class: "button" }, chosen ? `View: ${contained(chosen.name)}` : "Views"),
        h(
          "div",
          { class: "menu-list" },
          this.views.length === 0 &&
            h("p", { class: "quiet" }, "No view is saved. Choose filters or an order, then name them here."),
          this.views.map((view) => this.line(view, view === chosen)),
          may("write") && Object.keys(query).length > 0 && !chosen && this.form(),
        ),
      ),
    )
  }

  line(view, isChosen) {
    const open = (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return
      event.preventDefault()
      this.onopen(view.query)
    }
    const attributes = { class: "item", href: `/?${new URLSearchParams(view.query)}`, onclick: open }
    return h(
      "div",
      { class: "view-line", "data-key": view.view_id },
      h("a", { ...attributes, "aria-current": isChosen && "true" }, contained(view.name)),
      may("write") &&
        h(
          "button",
          {
            class: "icon-button",
            type: "button",
            "aria-label": `Delete the view ${contained(view.name)}`,
            onclick: () => this.remove(view),
          },
          "\u00d7",
        ),
    )
  }

  form() {
    return h(
      "form",
      { class: "view-form", "data-key": "form", onsubmit: (event) => this.save(event) },
      h("span", { class: "own-field", "data-own": true }, this.field),
      h("button", { class: "button" }, "Save"),
      this.refusal && h("p", { role: "alert" }, this.refusal),
    )
  }

  async save(event) {
    event.preventDefault()
    const name = this.field.value.trim()
    if (!name) return this.field.focus()
    await this.add({ name, query: this.asked() })
  }

  async add(view) {
    this.refusal = await send("POST", "/views", view).then(
      () => null,
      (error) => error.message,
    )
    if (!this.refusal) this.field.value = ""
    await this.load()
  }

  async remove(view) {
    const refusal = await send("DELETE", `/views/${view.view_id}`).catch((error) => error)
    if (refusal) toast(refusal.message)
    else toast(`Deleted the view ${contained(view.name)}.`, () => this.add({ name: view.name, query: view.query }))
    await this.load()
  }
}

const sorted = (query) => Object.entries(query).toSorted()
