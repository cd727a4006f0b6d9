/** The jobs of the fleet, one line each, under a head that also sorts. */

import { h } from "../dom.js"
import { counted, whole } from "../words.js"
import { fleetRow } from "./fleet-row.js"

/** What jobs can be ordered by, and which way each begins. */
export const ORDERS = {
  lost: { text: "lost now", dir: "desc" },
  slowdown: { text: "slowdown", dir: "desc" },
  gpus: { text: "GPUs", dir: "desc" },
  name: { text: "name", dir: "asc" },
  since: { text: "since", dir: "desc" },
  state: { text: "state", dir: "asc" },
}

const COLUMNS = [
  { text: "State", order: "state" },
  { text: "Job", order: "name" },
  { text: "Slowdown", order: "slowdown", class: "number" },
  { text: "Last 48 windows, 1.0\u00d7 to 1.5\u00d7", class: "at-middle" },
  { text: "Causes" },
  { text: "Culprit" },
  { text: "Since", order: "since", class: "at-narrow" },
  { text: "GPUs", order: "gpus", class: "number at-wide" },
  { text: "Lost now, GPU\u2011h/day", order: "lost", class: "number" },
]

/** The list; `asked` is the order in force, `picking` null or the picked job ids. */
export function fleetTable({ jobs, total, asked, picking, money, onorder, onpick, onmore, onclear }) {
  if (!jobs.length) return nothing(onclear)
  return [
    h("div", { class: picking ? "head is-picking" : "head", "data-key": "head" }, COLUMNS.map((column) => heading(column, asked, onorder))),
    h(
      "div",
      { role: "list", "aria-label": "Jobs", "data-key": "lines" },
      jobs.map((job) => fleetRow(job, picking && { isPicked: picking.has(job.job_id), onpick: () => onpick(job.job_id) }, money)),
    ),
    total > jobs.length && more(jobs.length, total, onmore),
  ]
}

function heading({ text, order, class: place = "" }, asked, onorder) {
  if (!order) return h("span", { class: place }, text)
  const isChosen = asked.order === order
  const way = asked.dir === "asc" ? "\u2191" : "\u2193"
  return h(
    "span",
    { class: place },
    h(
      "button",
      { type: "button", class: "sort", "aria-pressed": String(isChosen), onclick: () => onorder(order) },
      text,
      isChosen && h("i", { "aria-hidden": "true" }, way),
      isChosen && h("span", { class: "unseen" }, asked.dir === "asc" ? ", smallest first" : ", largest first"),
    ),
  )
}

function more(shown, total, onmore) {
  return h(
    "div",
    { class: "more", "data-key": "more" },
    h("span", { class: "quiet" }, `${whole(shown)} of ${counted(total, "job")}`),
    h("button", { class: "button", type: "button", onclick: onmore }, "Show more"),
  )
}

function nothing(onclear) {
  return h(
    "div",
    { class: "panel-state", "data-key": "nothing" },
    h("b", {}, "No job matches"),
    h("p", {}, "There are jobs, but none with these words, this state and this cause."),
    h("button", { class: "text-button", type: "button", onclick: onclear }, "Show all jobs"),
  )
}

/** Grey lines for the first load. */
export function waitingLines() {
  return h("div", { class: "waiting-lines", "aria-hidden": "true" }, Array.from({ length: 6 }, () => h("i")))
}
