/** "Details" at the end of a job's page: folded, open where the address says so. */

import { readAddress, updateAddress } from "../../lib/address.js"
import { h, patch } from "../../lib/dom.js"

const NAME = "details"

/** The section; closed it stays in the document, where the browser's search finds and opens it. */
export class DetailsSection {
  constructor() {
    this.body = h("div", { class: "detail-cards", "data-own": true })
    this.node = h(
      "details",
      { class: "details-section", "data-own": true, open: readAddress(NAME)[NAME] === "open" },
      h("summary", {}, h("h2", {}, "Details"), h("span", {}, "data used, fingerprint, recording, causes ruled out")),
      this.body,
    )
    this.node.addEventListener("toggle", () => updateAddress({ [NAME]: this.node.open ? "open" : null }))
  }

  /** Show these cards; null ones are left out. */
  draw(cards) {
    patch(this.body, cards)
  }
}
