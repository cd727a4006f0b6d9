/** Scores of ranks that other tools have measured, apart from Paceline's own figures. */

import { BASE, getJson, getJsonOrNull } from "../../lib/api.js"
import { h } from "../../lib/dom.js"
import { ago, contained, counted, ratio, whole } from "../../lib/formatting.js"

const MAX_TOOLS = 8 // each takes a request of its own
const MAX_ROWS = 5
const MAX_REPORTS = 500 // that a job keeps, so all tools are on one page

/** The newest report of each tool, of the first ones with its worst scores; null where the job has none. */
export async function loadScores(base) {
  const answer = await getJsonOrNull(`${base}/scores/reports?newest=true&limit=${MAX_REPORTS}`)
  const all = answer?.items ?? []
  if (!all.length) return null
  const reports = all.slice(0, MAX_TOOLS)
  const pages = await Promise.all(
    reports.map(({ report_id }) => getJson(`${base}/scores/reports/${report_id}?limit=${MAX_ROWS}`)),
  )
  const shown = reports.map((report, at) => ({ ...report, scores: pages[at].items, note: pages[at].note }))
  return { shown, others: all.slice(MAX_TOOLS).map(({ source }) => source), path: `${BASE}${base}/scores` }
}

/** The card; `known` as `loadScores` gives it. */
export function scoresCard(known) {
  if (!known) return null
  return h(
    "section",
    { class: "card scores", "data-key": "scores", "aria-label": "Scores of other tools" },
    h("header", {}, h("h2", {}, "Scores of other tools"), h("span", { class: "explanation" }, known.shown[0].note)),
    known.shown.map(tool),
    others(known),
    h("p", { class: "remark" }, "No operations are behind them, so no step can be replayed without what they show."),
  )
}

/** The names of further tools, and where their scores are. */
function others({ others: names, path }) {
  if (!names.length) return null
  return h(
    "p",
    { class: "quiet", "data-key": "others" },
    `and ${counted(names.length, "more tool")}: ${names.map(contained).join(", ")}. `,
    h("code", {}, `GET ${path}`),
    " has the scores of all.",
  )
}

function tool({ source, received_at, num_scores, scores, lacks }) {
  const more = num_scores - scores.length
  const hasSlowdown = scores.some(({ slowdown }) => slowdown !== null)
  return [
    h("h3", {}, contained(source), h("span", { class: "quiet" }, `, ${ago(new Date(received_at))}${stepOf(scores)}`)),
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {}, "Rank"),
          h("th", {}, "What"),
          h("th", { class: "number" }, hasSlowdown ? "Slowdown" : "Reading"),
        ),
      ),
      h("tbody", {}, scores.map(row)),
    ),
    more > 0 && h("p", { class: "quiet" }, `and ${counted(more, "more score")}`),
    lacks.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, "What it omits"),
        h(
          "ul",
          {},
          lacks.map(({ what, cost }) => h("li", {}, contained(`${what}: ${cost}`))),
        ),
      ),
  ]
}

function row(score) {
  const { rank, node, section, metric } = score
  const who = rank === null ? contained(node) : [whole(rank), node !== null && h("small", {}, contained(node))]
  return h(
    "tr",
    {},
    h("td", {}, who),
    h("td", {}, contained(section), h("small", {}, contained(metric.replaceAll("-", " ")))),
    h("td", { class: "number" }, worst(score)),
  )
}

/** Its slowdown; where it is compared with nothing, the value, or the mean of several, by which they are sorted. */
function worst({ slowdown, value, mean, num, unit }) {
  if (slowdown !== null) return ratio(slowdown)
  const shown = num > 1 ? mean : value
  if (shown === null) return h("span", { class: "quiet" }, "not known")
  return `${Number(shown.toPrecision(4))}${unit === null ? "" : ` ${contained(unit)}`}${num > 1 ? " on average" : ""}`
}

function stepOf(scores) {
  const steps = scores.map(({ step }) => step).filter((step) => step !== null)
  return steps.length ? `, step ${whole(Math.max(...steps))}` : ""
}
