/** The command palette (Ctrl+K, Cmd+K): jump to a page, job, host, rule or document; do what the page offers. */

import { getJson } from "../lib/api.js"
import { h, patch } from "../lib/dom.js"
import { contained } from "../lib/formatting.js"

// A search starts once the reader has stopped typing for so long.
const PAUSE_MS = 120
const MAX_OF_KIND = 8

const PLACES = [
  { kind: "Page", text: "Fleet", href: "/" },
  { kind: "Page", text: "Archived jobs", href: "/?lifecycle=archived" },
  { kind: "Page", text: "Alerts", href: "/alerts" },
  { kind: "Page", text: "Alert rules", href: "/alerts/rules" },
  { kind: "Page", text: "Receivers", href: "/alerts/receivers" },
  { kind: "Page", text: "Hosts", href: "/hosts" },
  { kind: "Page", text: "Compare", href: "/compare" },
  { kind: "Page", text: "Settings", href: "/settings" },
  { kind: "Page", text: "Audit", href: "/settings/audit" },
  { kind: "Page", text: "Status", href: "/status" },
  { kind: "Docs", text: "Documentation", href: "/docs" },
]
// What a page offers, also for one row, as an alert's Silence; a menu's entries are there while it is closed.
const ACTIONS = "main a.button, main button.button, main .acts .text-button, main .menu-list .item"

/** Whether the key opens the palette. */
export const isPaletteKey = (event) =>
  event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey

/** Name of the key as this computer's keyboard has it. */
export const PALETTE_KEY = /mac|iphone|ipad/i.test(navigator.userAgent) ? "\u2318K" : "Ctrl K"

/** Open the palette; a second one closes the first. */
export function openPalette() {
  const opened = document.querySelector("dialog.palette[open]") // a closed one leaves a moment later
  if (opened) return opened.close()
  if (document.querySelector("dialog[open]")) return
  new Palette().open()
}

class Palette {
  constructor() {
    Object.assign(this, { rest: [], found: [], options: [], active: 0, asked: 0 })
    this.actions = actionsOfPage()
    this.input = h("input", {
      class: "field",
      type: "text",
      role: "combobox",
      "aria-label": "Search or jump to",
      "aria-expanded": "true",
      "aria-controls": "palette-list",
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 128,
      placeholder: "Jobs, hosts, pages, rules, actions",
      oninput: () => this.typed(),
      onkeydown: (event) => this.press(event),
    })
    this.list = h("div", { id: "palette-list", role: "listbox", "aria-label": "Results" })
    this.count = h("div", { class: "unseen", role: "status" })
    this.node = h(
      "dialog",
      { class: "palette", "aria-label": "Command palette", onclick: (event) => this.outside(event) },
      this.input,
      this.list,
      this.count,
    )
    this.node.addEventListener("close", () => this.node.remove())
  }

  open() {
    document.body.append(this.node)
    this.node.showModal()
    this.draw()
    this.search()
    this.loadRest()
  }

  typed() {
    this.active = 0
    this.draw()
    clearTimeout(this.pause)
    this.pause = setTimeout(() => this.search(), PAUSE_MS)
  }

  /** Jobs and hosts by the server, since there may be thousands; older answers are dropped. */
  async search() {
    const asked = ++this.asked
    const query = new URLSearchParams({ q: this.input.value.trim(), limit: MAX_OF_KIND })
    const answer = await getJson(`/search?${query}`).catch(() => ({ items: [] }))
    if (asked !== this.asked) return
    this.found = answer.items.map(placeOf)
    this.draw()
  }

  async loadRest() {
    const [answer, titles] = await Promise.all([
      getJson("/rules").catch(() => null),
      fetch("/docs/titles.json").then(
        (found) => found.json(),
        () => [],
      ),
    ])
    const rules = (answer?.rules ?? []).map(({ name }) => ({
      kind: "Rule",
      text: contained(name),
      href: `/alerts/rules#rule-${encodeURIComponent(name)}`,
    }))
    const documents = titles.map(({ title, page, href }) => ({
      kind: "Docs",
      text: title,
      more: title === page ? "" : page,
      href,
    }))
    this.rest = [...rules, ...documents]
    this.draw()
  }

  draw() {
    const words = wordsOf(this.input.value)
    const own = [...this.actions, ...PLACES, ...this.rest].filter(({ kind, text, more = "" }) =>
      matches(words, `${kind} ${text} ${more}`),
    )
    const limited = ["Action", "Page", "Rule", "Docs"].flatMap((kind) =>
      own.filter((each) => each.kind === kind).slice(0, words.length ? MAX_OF_KIND : MAX_UNASKED[kind]),
    )
    const jobs = this.found.filter(({ searched }) => matches(words, searched))
    // Before anything is typed, what the page offers comes first; then what was searched for.
    this.options = words.length ? [...jobs, ...limited] : [...limited, ...jobs]
    this.active = Math.max(0, Math.min(this.active, this.options.length - 1))
    patch(
      this.list,
      this.options.map((each, at) => this.option(each, at)),
      !this.options.length && h("p", { class: "quiet" }, "Nothing matches all of these words."),
    )
    const active = this.list.querySelector("[aria-selected=true]")
    if (active) this.input.setAttribute("aria-activedescendant", active.id)
    else this.input.removeAttribute("aria-activedescendant")
    active?.scrollIntoView({ block: "nearest" })
    this.count.textContent = this.options.length ? "" : "Nothing matches."
  }

  option(each, at) {
    return h(
      "div",
      {
        id: `palette-${at}`,
        role: "option",
        "aria-selected": String(at === this.active),
        onclick: () => this.choose(each),
      },
      h("span", { class: "text" }, each.text, each.more && h("small", {}, each.more)),
      h("span", { class: "kind" }, each.kind),
    )
  }

  press(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: MAX_OF_KIND, PageUp: -MAX_OF_KIND }
    if (isPaletteKey(event)) this.node.close()
    else if (event.key === "Enter") this.options[this.active] && this.choose(this.options[this.active])
    else if (event.key in moves) this.move(moves[event.key])
    else return
    event.preventDefault()
    event.stopPropagation()
  }

  /** Move the choice; one step past an end goes to the other end. */
  move(by) {
    const last = this.options.length - 1
    const to = this.active + by
    if (Math.abs(by) === 1) this.active = to < 0 ? last : to > last ? 0 : to
    else this.active = Math.min(Math.max(to, 0), last)
    this.draw()
  }

  choose({ href, act }) {
    this.node.close()
    if (act) return act()
    // The documentation's pages are documents of their own.
    if (href.startsWith("/docs")) return location.assign(href)
    const link = h("a", { href })
    // As a click on a link of the page, which app.js follows without loading the document again.
    document.body.append(link)
    link.click()
    link.remove()
  }

  outside({ target, clientX: x, clientY: y }) {
    if (target !== this.node) return
    const { left, right, top, bottom } = this.node.getBoundingClientRect()
    if (x < left || x > right || y < top || y > bottom) this.node.close()
  }
}

const MAX_UNASKED = { Action: 5, Page: 4, Rule: 0, Docs: 1 }

const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean)

const matches = (words, text) => words.every((word) => text.toLowerCase().includes(word))

function placeOf({ kind, id, name, labels, is_archived }) {
  const tags = Object.entries(labels).map(([label, value]) => `${label}=${value}`)
  const more = [name !== id && contained(id), labels.owner && contained(labels.owner), is_archived && "archived"]
  return {
    kind: kind === "job" ? "Job" : "Host",
    text: contained(name),
    more: more.filter(Boolean).join(" \u00b7 "),
    searched: [id, name, ...tags].join("\n"),
    href: `/${kind}s/${encodeURIComponent(id)}`,
  }
}

/** Buttons and links that the page shows as such, each once. */
function actionsOfPage() {
  const nodes = [...document.querySelectorAll(ACTIONS)].filter(
    (node) => !node.disabled && (node.closest(".menu-list") || node.checkVisibility()),
  )
  const byText = new Map(nodes.map((node) => [node.getAttribute("aria-label") ?? node.textContent.trim(), node]))
  return [...byText].filter(([text]) => text).map(([text, node]) => ({ kind: "Action", text, act: () => node.click() }))
}
