/** Annotations of a job: the newest ones, with a form to add one and a way to delete them. */

import { getJsonOrNull, send } from "../../lib/api.js"
import { announce, h, patch } from "../../lib/dom.js"
import { clock, contained, isKnown, whole } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const MAX_SHOWN = 5
const MAX_TEXT = 500

const KINDS = [
  ["note", "Note"],
  ["deploy", "Deploy"],
  ["checkpoint", "Checkpoint"],
  ["config-change", "Config change"],
  ["maintenance", "Maintenance"],
  ["node-drained", "Node drained"],
  ["node-not-ready", "Node not ready"],
  ["pod-evicted", "Pod evicted"],
  ["job-requeued", "Job requeued"],
  ["other", "Other"],
]

/** The card; `onChange()` is called when an annotation was added or deleted, `onRefused()` without a session. */
export class AnnotationsCard {
  constructor({ base, onChange, onRefused }) {
    Object.assign(this, { base, onChange, onRefused, found: null, removed: null, refusal: "", isOpen: false })
    this.node = h("section", { class: "card annotations", "data-own": true, "aria-label": "Annotations" })
    this.form = h("form", { class: "form", "data-own": true, onsubmit: (event) => this.submit(event) })
  }

  /** Load the newest annotations; a page without them is still a page. */
  async load() {
    this.found = await getJsonOrNull(`${this.base}/annotations?limit=${MAX_SHOWN + 1}`).catch(() => this.found)
    this.draw()
  }

  draw() {
    const items = this.found?.items ?? []
    const hasMore = items.length > MAX_SHOWN
    patch(
      this.node,
      h(
        "header",
        {},
        h("h2", {}, "Annotations"),
        h("span", { class: "explanation" }, "deploys, checkpoints and notes beside the steps"),
      ),
      items.length
        ? h(
            "ul",
            {},
            items.slice(0, MAX_SHOWN).map((item) => this.row(item)),
          )
        : h("p", { class: "quiet" }, "None yet. Programs report them with ", h("code", {}, "paceline annotate"), "."),
      hasMore && h("p", { class: "remark" }, "Older ones are in the API: ", h("code", {}, "annotations"), "."),
      this.removed && this.undoRow(),
      this.refusal && h("p", { class: "refused", role: "alert", "data-key": "refused" }, this.refusal),
      may("write") &&
        !this.isOpen &&
        h(
          "button",
          { class: "text-button", type: "button", "data-key": "open", onclick: () => this.open() },
          "Add an annotation",
        ),
      this.isOpen && this.form,
    )
    if (this.isOpen) this.drawForm()
  }

  row(item) {
    const { annotation_id, label, at, placed_step, source, author, job_id } = item
    const when = [clock(new Date(at)), isKnown(placed_step) && `step ${whole(placed_step)}`].filter(Boolean).join(", ")
    const by = [source && contained(source), contained(author), job_id === null && "many jobs"].filter(Boolean)
    return h(
      "li",
      { "data-key": annotation_id },
      h("p", {}, contained(label), h("small", {}, `${when}; ${by.join(", ")}`)),
      may("write") &&
        h(
          "button",
          {
            class: "text-button",
            type: "button",
            "aria-label": `Delete ${contained(label)}`,
            onclick: () => this.remove(item),
          },
          "Delete",
        ),
    )
  }

  undoRow() {
    return h(
      "p",
      { class: "quiet", role: "status", "data-key": "undo" },
      `Deleted: ${contained(this.removed.label)}. `,
      h("button", { class: "text-button", type: "button", onclick: () => this.undo() }, "Undo"),
    )
  }

  drawForm() {
    patch(
      this.form,
      h(
        "div",
        { class: "fields" },
        h(
          "label",
          {},
          h("b", {}, "Kind"),
          h(
            "select",
            { class: "field", name: "kind" },
            KINDS.map(([value, text]) => h("option", { value }, text)),
          ),
        ),
        h(
          "label",
          {},
          h("b", {}, "Step"),
          h("input", {
            class: "field",
            name: "step",
            type: "number",
            min: 0,
            step: 1,
            placeholder: "now",
          }),
        ),
      ),
      h(
        "div",
        { class: "fields", "data-key": "text" },
        h(
          "label",
          {},
          h("b", {}, "Text"),
          h("input", { class: "field", name: "text", maxlength: MAX_TEXT, autocomplete: "off" }),
        ),
      ),
      h(
        "div",
        { class: "acts", "data-key": "acts" },
        h("button", { class: "button", type: "submit" }, "Add"),
        h("button", { class: "button", type: "button", onclick: () => this.close() }, "Cancel"),
      ),
    )
  }

  open() {
    Object.assign(this, { isOpen: true, refusal: "" })
    this.draw()
    this.form.reset()
    this.form.elements.kind.focus()
  }

  close() {
    Object.assign(this, { isOpen: false, refusal: "" })
    this.draw()
  }

  async submit(event) {
    event.preventDefault()
    const { kind, text, step } = this.form.elements
    const asked = {
      kind: kind.value,
      text: text.value.trim(),
      source: "page",
      ...(step.value && { step: Number(step.value) }),
    }
    if (await this.change(() => send("POST", `${this.base}/annotations`, asked))) {
      announce("Added.")
      this.close()
    }
  }

  async remove(item) {
    const path = item.job_id === null ? "/annotations" : `${this.base}/annotations`
    if (await this.change(() => send("DELETE", `${path}/${item.annotation_id}`))) {
      this.removed = item
      announce("Deleted.")
      this.draw()
    }
  }

  /** Add the annotation that was just deleted again. */
  async undo() {
    const { job_id, kind, text, host, at, ends_at, step, source, matchers } = this.removed
    const asked = { kind, text, host, at, ends_at, source, ...(job_id === null ? { matchers } : { step }) }
    const path = job_id === null ? "/annotations" : `${this.base}/annotations`
    if (await this.change(() => send("POST", path, asked))) {
      this.removed = null
      announce("Restored.")
      this.draw()
    }
  }

  /** Whether a request was accepted; a refusal shows in the card. */
  async change(request) {
    this.refusal = ""
    try {
      await request()
    } catch (error) {
      if (error.status === 401) this.onRefused()
      this.refusal = error.message
      this.draw()
      return false
    }
    await this.load()
    this.onChange()
    return true
  }
}
