/** What happened in the course of the job, newest first. */

import { h } from "../dom.js"
import { tidy, whole } from "../words.js"

const MAX_ROWS = 8

// What an alert says is in the headline of its time; its page has it.
const ALERTS = { "alert-firing": "Alert fired", "alert-resolved": "Alert resolved" }

/** The card from the ribbon's events; null where nothing happened. */
export function happenedCard(events) {
  if (!events.length) return null
  const newest = [...events].reverse()
  return h(
    "section",
    { class: "card happened", "data-key": "happened", "aria-label": "What happened" },
    h("header", {}, h("h2", {}, "What happened")),
    h("dl", {}, newest.slice(0, MAX_ROWS).map(row)),
    newest.length > MAX_ROWS && h("p", { class: "remark" }, `and ${whole(newest.length - MAX_ROWS)} before`),
  )
}

function row({ step, kind, detail }) {
  const text = ALERTS[kind]
  const words = text ? h("dd", {}, h("a", { href: "/alerts", title: detail }, text)) : h("dd", {}, tidy(capital(detail)))
  return [h("dt", { class: "number" }, `step ${whole(step)}`), words]
}

const capital = (text) => (/^(dp |host)/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1))
