/** The documentation's own script: the bar, and a search by title. The pages are complete without it. */

import { topBar } from "./components/top-bar.js"
import { h, patch } from "./lib/dom.js"
import { counted } from "./lib/formatting.js"

const MAX_FOUND = 12
const bar = document.getElementById("top-bar")
const root = document.getElementById("docs-search")
const found = h("div", { class: "docs-found", role: "status", "data-own": true })
const field = h("input", {
  class: "field",
  type: "search",
  placeholder: "Search titles",
  "aria-label": "Search the documentation by title",
  autocomplete: "off",
  "data-own": true,
  oninput: () => search(),
})
let titles = null

function drawBar() {
  patch(bar, topBar(null, drawBar, { hasPages: true }))
}

/** Titles are requested with the first letter; until they are here nothing is shown. */
async function search() {
  titles ??= await (await fetch("/docs/titles.json")).json()
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
  if (!words.length) return patch(found)
  const hits = titles.filter(({ title, page }) =>
    words.every((word) => `${title} ${page}`.toLowerCase().includes(word)),
  )
  patch(found, hits.length ? list(hits) : h("p", { class: "quiet" }, "No title has these words."))
}

function list(hits) {
  const more = hits.length - MAX_FOUND
  return [
    h("ul", {}, hits.slice(0, MAX_FOUND).map(hit)),
    more > 0 && h("p", { class: "quiet" }, `and ${counted(more, "more title")}`),
  ]
}

function hit({ title, page, href }) {
  return h("li", {}, h("a", { href }, title, title !== page && h("small", {}, page)))
}

drawBar()
patch(root, field, found)
