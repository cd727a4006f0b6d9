/** The table of jobs: its head, a line for each job, its causes and culprits in few words. */

import { place, placeOf, rankWords } from "../../components/culprits.js"
import { definedBy, term } from "../../components/definition.js"
import { hasStaleFigures, missingDataInShort } from "../../components/missing-data.js"
import { isOver, stateLabel } from "../../components/state-icon.js"
import { causeName, causeOf } from "../../lib/causes.js"
import { h } from "../../lib/dom.js"
import {
  contained,
  counted,
  isKnown,
  NOT_MEASURED,
  percentNumber,
  ratio,
  roughHours,
  roundedPercent,
  shape,
  tidy,
  whole,
} from "../../lib/formatting.js"
import { shortDuration, timeOf } from "../../lib/times.js"
import { sparkline } from "./sparkline.js"

/** Orders of the jobs, with the default direction of each. */
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
  { text: "Slowdown", order: "slowdown", class: "number", define: "slowdown" },
  { text: "Last 48 windows, 1.0\u00d7 to 1.5\u00d7", class: "at-middle" },
  { text: "Causes", define: "cause" },
  { text: "Culprit", define: "culprit" },
  { text: "Since", order: "since", class: "at-narrow", define: "onset" },
  { text: "GPUs", order: "gpus", class: "number at-wide" },
  { text: "Lost now, GPU\u2011h/day", order: "lost", class: "number", define: "being lost now" },
]

/** The list; `asked` is the order in force, `picking` null or the picked job ids. */
export function fleetTable({ jobs, total, asked, picking, money, onorder, onpick, onmore, onclear }) {
  if (!jobs.length) return nothing(onclear)
  return [
    h(
      "div",
      { class: picking ? "head is-picking" : "head", "data-key": "head" },
      COLUMNS.map((column) => heading(column, asked, onorder)),
    ),
    h(
      "div",
      { role: "list", "aria-label": "Jobs", "data-key": "lines" },
      jobs.map((job) =>
        fleetRow(job, picking && { isPicked: picking.has(job.job_id), onpick: () => onpick(job.job_id) }, money),
      ),
    ),
    total > jobs.length && more(jobs.length, total, onmore),
  ]
}

function heading({ text, order, class: place = "", define }, asked, onorder) {
  if (!order) return h("span", { class: place }, define ? term(text, define) : text)
  const isChosen = asked.order === order
  const way = asked.dir === "asc" ? "\u2191" : "\u2193"
  return h(
    "span",
    { class: place },
    h(
      "button",
      {
        type: "button",
        class: "sort",
        "aria-pressed": String(isChosen),
        ...(define && definedBy(define)),
        onclick: () => onorder(order),
      },
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
  return h(
    "div",
    { class: "waiting-lines", "aria-hidden": "true" },
    Array.from({ length: 6 }, () => h("i")),
  )
}

const NOT_ANY = "n/a"

/** The line; `pick` is null or `{isPicked, onpick}` while jobs are picked. */
function fleetRow(job, pick, money) {
  return h(
    "div",
    { class: pick ? "fleet-line is-picking" : "fleet-line", "data-key": job.job_id, role: "listitem" },
    h(
      "a",
      { class: "row", href: `/jobs/${encodeURIComponent(job.job_id)}`, onclick: (event) => choose(event, job, pick) },
      h("span", { class: "is" }, stateLabel(job.state), h("span", { class: "at-phone" }, leadingCause(job))),
      h("span", { class: "job" }, h("b", {}, contained(job.name)), h("small", {}, under(job))),
      h("span", { class: "number slowdown" }, slowdown(job)),
      course(job),
      causes(job),
      culprit(job),
      since(job),
      h("span", { class: "number at-wide at-desk" }, whole(job.gpus)),
      lost(job, money),
    ),
    pick && box(job, pick),
  )
}

/** While picking, a click picks the job; else it opens it, and "back" returns to this line. */
function choose(event, { job_id }, pick) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return
  if (!pick) return history.replaceState({ opened: job_id }, "")
  event.preventDefault()
  pick.onpick()
}

/** The text under a job's name: its shape and owner. */
function under({ parallelism, labels, framework }) {
  const who = labels.owner ?? labels.team ?? framework
  return [shape(parallelism), who && contained(who)].filter(Boolean).join(" \u00b7 ")
}

const isWithheld = (job) => job.verdict === "low"

function slowdown(job) {
  if (job.slowdown === null || hasStaleFigures(job)) return quiet(NOT_MEASURED)
  return h("b", { class: isOver(job) && "old" }, ratio(job.slowdown))
}

function course(job) {
  if (isWithheld(job)) return h("span", { class: "quiet at-desk at-middle" }, NOT_MEASURED)
  return sparkline(job.sparkline, { onset: job.onset_bin, isSilent: hasStaleFigures(job) })
}

function since(job) {
  const { since_step, since_at, lasted_s } = job
  const when = since_at
    ? timeOf(new Date(since_at))
    : since_step === null
      ? sinceWords(job)
      : `step ${whole(since_step)}`
  const more = [
    since_at && since_step !== null && `step ${whole(since_step)}`,
    since_at && isKnown(lasted_s) && lasted_s >= 1 && shortDuration(lasted_s),
    !since_at && since_step !== null && "time not known",
  ].filter(Boolean)
  return h(
    "span",
    { class: when === NOT_ANY ? "quiet at-desk at-narrow" : "since at-desk at-narrow" },
    when,
    more.length > 0 && h("small", {}, more.join(", ")),
  )
}

/** A cause without an onset step has been there for the whole run. */
const sinceWords = ({ causes }) => (causes.length ? "whole run" : NOT_ANY)

function lost(job, money) {
  const perDay = job.lost_gpu_hours_per_day
  if (perDay === null)
    return h("span", { class: "number lost is-unknown" }, quiet(isOver(job) ? NOT_ANY : NOT_MEASURED))
  const price = money(perDay)
  return h("span", { class: "number lost" }, h("b", {}, roughHours(perDay)), price && h("small", {}, price))
}

const quiet = (text) => h("span", { class: "quiet" }, text)

function box(job, { isPicked, onpick }) {
  return h(
    "button",
    {
      class: "pick",
      type: "button",
      role: "checkbox",
      "aria-checked": String(isPicked),
      "aria-label": `Select ${contained(job.name)}`,
      onclick: onpick,
    },
    h(
      "svg",
      { viewBox: "0 0 12 12", "aria-hidden": "true" },
      h("path", { d: "M1.5 6.5 4.5 9.5 10.5 2.5", fill: "none", stroke: "currentColor", "stroke-width": 1.75 }),
    ),
  )
}

const CHIPS = 2

/** The chips of a job's causes, the leading one first; a text where there are none. */
function causes(job) {
  const words = instead(job)
  if (words) return h("span", { class: "causes at-desk quiet" }, words)
  const silence = missingDataInShort(job)
  if (silence)
    return h("span", { class: "causes at-desk" }, chip(silence[0], job.state === "stalled" || job.state === "crashed"))
  const chips = job.causes
    .slice(0, CHIPS)
    .map(({ cause }, at) => chip(shortCause(cause, job), at === 0 && job.state === "straggling", cause))
  const more = job.num_causes - CHIPS
  return h("span", { class: "causes at-desk" }, chips, more > 0 && h("span", { class: "quiet" }, `+${more}`))
}

/** The leading cause as plain words, for the narrow card; empty where there is none. */
function leadingCause(job) {
  if (instead(job)) return job.is_diagnosed ? (factWords(job.observation) ?? "") : ""
  const silence = missingDataInShort(job)
  if (silence) return silence[0]
  return job.causes.length ? shortCause(job.causes[0].cause, job) : ""
}

/** The culprits, in two lines. */
function culprit(job) {
  const [text, more, isQuiet] = culpritWords(job)
  return h(
    "span",
    {
      class: isQuiet ? "culprit at-desk quiet" : "culprit at-desk",
      title: job.culprits.length ? place(job.culprits[0]) : null,
    },
    text,
    more && h("small", {}, tidy(more)),
  )
}

/** With a cause, its definition shows on hover; by keyboard it is on the job's page, which the row opens. */
function chip(text, isLeading, cause = null) {
  return h("span", { class: isLeading ? "chip is-leading" : "chip", "data-define": cause }, text)
}

function shortCause(cause, job) {
  // The culprits of a job are those of its first cause.
  const isAboutIt = job.causes[0].cause === cause && job.num_culprits === 1
  const { pp_size } = job.parallelism
  return lower(causeName(cause, isAboutIt && pp_size > 1 && job.culprits[0].stage === pp_size - 1))
}

/** As written within a line. */
const lower = (name) => name.charAt(0).toLowerCase() + name.slice(1)

/** What is seen without a cause, as "idle between steps, 5.4 %"; null without any. */
const factWords = (seen) => seen && tidy(`${seen.kind.replaceAll("-", " ")}, ${roundedPercent(seen.share)} %`)

function instead(job) {
  if (job.state === "not-analysed") return "not yet"
  if (missingDataInShort(job) || job.causes.length) return null
  if (job.is_diagnosed) return factWords(job.observation) ?? "none found"
  return job.verdict === "low" ? "withheld" : NOT_MEASURED
}

function culpritWords(job) {
  const silence = missingDataInShort(job)
  if (silence) return [silence[1], lastKnown(job)]
  if (job.state === "not-analysed") return [job.not_analysed ?? "no figures yet", ""]
  if (job.causes.length) return blamed(job)
  if (job.is_diagnosed) return ["none", "", true]
  if (job.verdict === "low") return [offBy(job), "figures withheld"]
  return [NOT_MEASURED, job.not_analysed ?? "", true]
}

const offBy = ({ discrepancy }) =>
  Number.isFinite(discrepancy) ? `simulated ${percentNumber(discrepancy)} % off` : "simulated too far off"

const lastKnown = ({ slowdown }) => (slowdown === null ? "" : `last known ${ratio(slowdown)}`)

function blamed({ causes, culprits, num_culprits }) {
  if (!culprits.length) {
    const row = causeOf(causes[0].cause)
    return [row?.nobody ?? "no single worker", row?.nobody_note ?? ""]
  }
  const [first] = culprits
  const { host, local_rank, num_workers } = first
  const others = num_culprits > 1 ? `and ${whole(num_culprits - 1)} more` : ""
  const gpu = isKnown(local_rank) ? `GPU ${whole(local_rank)}` : ""
  const all = isKnown(num_workers) ? `all ${whole(num_workers)} workers` : ""
  const [ranks, worker] = [rankWords(first), placeOf(first)]
  const who = ranks && worker ? `${ranks} (${worker})` : ranks || worker
  if (!host) return [who || "no single worker", [ranks && "host not reported", gpu, others].filter(Boolean).join(", ")]
  return [contained(host), [who, gpu, all, others].filter(Boolean).join(", ")]
}

/** How many causes a filter offers, with their words: `[cause, "slow worker (3)"]`. */
export function causeChoices(byCause) {
  return Object.entries(byCause).map(([cause, number]) => [
    cause,
    `${lower(causeName(cause))} (${counted(number, "job")})`,
  ])
}
