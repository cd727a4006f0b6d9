/** The dialog in which a reader sets a job's owner and tags; labels that the job registered are shown beneath. */

import { send } from "../../lib/api.js"
import { h } from "../../lib/dom.js"
import { contained } from "../../lib/formatting.js"

const OWNER = "owner"
const MAX_NAME = 64

/** Open the dialog for a job; `onSaved()` once the server has taken the labels. */
export function editLabels(job, onSaved) {
  const dialog = new LabelsDialog(job, onSaved)
  document.body.append(dialog.node)
  dialog.node.showModal()
}

class LabelsDialog {
  constructor(job, onSaved) {
    Object.assign(this, { job, onSaved })
    const { [OWNER]: owner = "", ...tags } = job.edited_labels
    this.owner = h("input", { class: "field", id: "label-owner", maxlength: 256, autocomplete: "off" })
    this.owner.value = owner
    this.owner.placeholder = job.labels[OWNER] && !owner ? `${contained(job.labels[OWNER])} (registered)` : ""
    this.tags = h("textarea", {
      class: "field",
      id: "label-tags",
      rows: 5,
      spellcheck: "false",
      "aria-describedby": "label-hint label-refusal",
    })
    this.tags.value = Object.entries(tags)
      .map(([name, text]) => `${name}=${text}`)
      .join("\n")
    this.refusal = h("p", { id: "label-refusal", role: "alert" })
    this.node = h("dialog", { class: "dialog", "aria-labelledby": "labels-title" }, this.form())
    this.node.addEventListener("close", () => this.node.remove())
  }

  form() {
    const registered = Object.entries(this.job.labels).filter(([name]) => !(name in this.job.edited_labels))
    return h(
      "form",
      { class: "labels-form", onsubmit: (event) => this.submit(event) },
      h("h2", { id: "labels-title" }, `Owner and tags of ${contained(this.job.name)}`),
      h("label", { for: "label-owner" }, "Owner"),
      this.owner,
      h("label", { for: "label-tags" }, "Tags"),
      this.tags,
      h(
        "p",
        { class: "quiet", id: "label-hint" },
        "One tag a line, as in priority=high.",
        " Owner and tags are labels of the job\u2019s alerts: receivers and silences match them.",
      ),
      registered.length > 0 &&
        h(
          "p",
          { class: "quiet" },
          `Registered by the job: ${registered.map(([name, text]) => contained(`${name}=${text}`)).join(", ")}.`,
        ),
      this.refusal,
      h(
        "div",
        { class: "acts" },
        h("button", { class: "button", type: "button", onclick: () => this.node.close() }, "Cancel"),
        h("button", { class: "button is-primary" }, "Save"),
      ),
    )
  }

  async submit(event) {
    event.preventDefault()
    const { labels, problem } = this.wanted()
    if (problem) return this.refuse(problem)
    const taken = Object.fromEntries(Object.keys(this.job.edited_labels).map((name) => [name, null]))
    const path = `/jobs/${encodeURIComponent(this.job.job_id)}`
    const error = await send("PATCH", path, { labels: { ...taken, ...labels } }).then(
      () => null,
      (refused) => refused,
    )
    if (error) return this.refuse(error.message)
    this.node.close()
    this.onSaved()
  }

  /** The labels in the fields, or what is wrong with them. */
  wanted() {
    const labels = {}
    const owner = this.owner.value.trim()
    if (owner) labels[OWNER] = owner
    for (const line of this.tags.value.split("\n").map((text) => text.trim())) {
      if (!line) continue
      const at = line.indexOf("=")
      const [name, text] = [line.slice(0, at).trim(), line.slice(at + 1).trim()]
      if (at < 1 || !name || !text || name.length > MAX_NAME) return { problem: `Not name=value: ${contained(line)}` }
      labels[name] = text
    }
    return { labels }
  }

  refuse(words) {
    this.refusal.textContent = words
  }
}
