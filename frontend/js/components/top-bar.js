/** The bar on every page: where you are, whether it is live, and the theme. */

import { h } from "../lib/dom.js"
import { choice, choose } from "../lib/theme.js"
import { openPalette, PALETTE_KEY } from "./command-palette.js"
import { menu } from "./menu.js"
import { stateIcon } from "./state-icon.js"

const NEXT = { system: "light", light: "dark", dark: "system" }
const ICONS = {
  light:
    "M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.5 1.5M11.5 11.5 13 13M3 13l1.5-1.5M11.5 4.5 13 3M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  dark: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  system: "M2 3h12v8H2zM5.5 14h5M8 11v3",
}

const MAGNIFIER = "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.4 10.4 14 14"

// Parts of the live status that are hidden on a phone.
const LESS_WANTED = /(updated |step [\d,]+, |, last data)/

const PAGES = [
  { href: "/", text: "Fleet", isHere: (path) => path === "/" || path.startsWith("/jobs/") || path === "/compare" },
  { href: "/alerts", text: "Alerts", isHere: (path) => path.startsWith("/alerts") },
  { href: "/hosts", text: "Hosts", isHere: (path) => path.startsWith("/hosts") },
  { href: "/settings", text: "Settings", isHere: (path) => path.startsWith("/settings") || path === "/status" },
  // Documents of their own, which the server renders.
  { href: "/docs", text: "Docs", isHere: (path) => path.startsWith("/docs") },
]

/** Children of the bar; `live` is `{mark, tone, text}` or null when not signed in: then it has no pages by default. */
export function topBar(live, onTheme, { hasPages = Boolean(live) } = {}) {
  return [
    h(
      "a",
      { class: "brand", href: "/", "aria-label": "Paceline", "data-key": "brand" },
      logo(),
      h("span", {}, "Paceline"),
    ),
    hasPages && h("nav", { "aria-label": "Pages", "data-key": "nav" }, PAGES.map(pageLink)),
    hasPages && pagesMenu(),
    h(
      "div",
      { class: "right", "data-key": "right" },
      live && liveMark(live),
      live && paletteButton(),
      themeButton(onTheme),
    ),
  ]
}

function pageLink({ href, text, isHere }) {
  return h("a", { href, "aria-current": isHere(location.pathname) && "page" }, text)
}

/** The pages in a menu, where the bar has no room for them. */
function pagesMenu() {
  const here = PAGES.find(({ isHere }) => isHere(location.pathname))
  const list = h("nav", { "aria-label": "Pages" }, PAGES.map(pageLink))
  return menu({ "data-key": "menu" }, h("summary", {}, here?.text ?? "Pages"), list)
}

function logo() {
  const stroke = { fill: "none", "stroke-width": 2.4, "stroke-linecap": "round" }
  return h(
    "svg",
    { viewBox: "0 0 16 16", "aria-hidden": "true" },
    h("path", { ...stroke, stroke: "var(--ink)", d: "M3 3h11" }),
    h("path", { ...stroke, stroke: "var(--lost)", d: "M2 8h8" }),
    h("path", { ...stroke, stroke: "var(--ink)", d: "M3 13h11" }),
  )
}

function liveMark({ mark: name, tone, text }) {
  const words = text.split(LESS_WANTED).map((part, at) => (at % 2 ? h("span", { class: "less-wanted" }, part) : part))
  return h(
    "div",
    { class: tone === "is-stale" ? "live is-stale" : "live" },
    stateIcon(name, tone),
    h("span", {}, words),
  )
}

function paletteButton() {
  const label = `Search or jump to (${PALETTE_KEY})`
  return h(
    "button",
    { class: "palette-button", type: "button", "aria-label": label, title: label, onclick: openPalette },
    h(
      "svg",
      { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
      h("path", { d: MAGNIFIER, fill: "none", stroke: "currentColor", "stroke-width": 1.3, "stroke-linecap": "round" }),
    ),
    h("kbd", { "aria-hidden": "true" }, PALETTE_KEY),
  )
}

function themeButton(onTheme) {
  const now = choice()
  const label = `Theme: ${now}. Change to ${NEXT[now]}.`
  const onclick = () => {
    choose(NEXT[now])
    onTheme()
  }
  return h(
    "button",
    { class: "icon-button", type: "button", "aria-label": label, title: label, onclick },
    h(
      "svg",
      { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
      h("path", {
        d: ICONS[now],
        fill: "none",
        stroke: "currentColor",
        "stroke-width": 1.3,
        "stroke-linecap": "round",
        "stroke-linejoin": "round",
      }),
    ),
  )
}
