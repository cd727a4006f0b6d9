/** The bar on every page: where you are, whether it is live, and the theme. */

import { h } from "../dom.js"
import { choice, choose } from "../theme.js"
import { mark } from "./mark.js"

const NEXT = { system: "light", light: "dark", dark: "system" }
const ICONS = {
  light: "M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.5 1.5M11.5 11.5 13 13M3 13l1.5-1.5M11.5 4.5 13 3M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  dark: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  system: "M2 3h12v8H2zM5.5 14h5M8 11v3",
}

/** Children of the bar; `live` is `{mark, tone, text}` or null when not signed in. */
export function topBar(live, onTheme) {
  return [
    h("a", { class: "brand", href: "/", "data-key": "brand" }, logo(), "Paceline"),
    live && h("nav", { "aria-label": "Pages", "data-key": "nav" }, h("a", { href: "/", "aria-current": "page" }, "Fleet")),
    h("div", { class: "right", "data-key": "right" }, live && liveMark(live), themeButton(onTheme)),
  ]
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
  return h("div", { class: tone === "is-stale" ? "live is-stale" : "live" }, mark(name, tone), h("span", {}, text))
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
      h("path", { d: ICONS[now], fill: "none", stroke: "currentColor", "stroke-width": 1.3, "stroke-linecap": "round", "stroke-linejoin": "round" }),
    ),
  )
}
