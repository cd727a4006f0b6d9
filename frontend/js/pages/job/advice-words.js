/** Fixes in words: what each wins, how sure that is, when it pays, and what to paste. */

import { copyOrSelectButton } from "../../components/buttons.js"
import { confidenceBars } from "../../components/findings-card.js"
import { LONGEST_VALUE } from "../../lib/address.js"
import { h } from "../../lib/dom.js"
import { about, capitalized, contained, ratio, roughHours, stepRange, tidy } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"
import { fixName, isAsked, needed } from "./advice-facts.js"

const NO_FIX = "No fix is known for the causes found."
const NO_FACT = "A fix can be predicted once more is known."
const OTHERS = "No fix is known for the causes found. These win time without removing them."
const OTHERS_LACKING_FACTS =
  "What removes the causes found can be predicted once more is known (below). These win time without removing them."

/** The title, with the steps that were simulated; `isOther` where the page shows a newer, open window. */
export function adviceHeader(answer, isOther) {
  const steps = answer?.steps ?? []
  const own = steps.length ? `, ${stepRange(steps[0], steps.at(-1))}` : ""
  const which = answer && isOther ? `, of the newest closed window ${answer.window}` : ""
  return h(
    "header",
    {},
    h("h2", {}, "What to do"),
    h("span", { class: "explanation" }, `predicted by simulating the job with each fix${own}${which}`),
  )
}

/**
 * The fixes, the one that wins most first, and the best set of them; or why there are none.
 *
 * `options` are the job's `base` address, `track(fix)` for the button that follows a fix, and
 * `isStale` where another answer is to come: then no text of this one can be copied.
 */
export function adviceWords({ window, withheld, fixes, together, not_offered }, options) {
  if (withheld) return h("p", { class: "none" }, tidy(`${capitalized(contained(withheld))}.`))
  const lacksFact = not_offered.some(({ needs }) => needs.length)
  if (!fixes.length) return h("p", { class: "none" }, lacksFact ? NO_FACT : NO_FIX)
  return [
    // The headline is about the cause: one line says why the first fix is about something else.
    fixes[0].cause === null && h("p", { class: "quiet" }, lacksFact ? OTHERS_LACKING_FACTS : OTHERS),
    h(
      "ol",
      {},
      fixes.map((fix) => fixRow(fix, window, options)),
    ),
    together && h("p", { class: "together" }, togetherWords(together, fixes)),
  ]
}

/** Fixes that are not advised, folded; those that only lack a fact are asked for elsewhere. */
export function notAdvised({ not_offered }) {
  const others = not_offered.filter(({ needs }) => !needs.length)
  if (!others.length) return null
  return h(
    "details",
    { "data-key": "others" },
    h("summary", {}, "Not advised here"),
    h(
      "dl",
      {},
      others.map(({ fix, reason }) =>
        h("div", {}, h("dt", {}, `${fixName(fix)}: `), h("dd", {}, `${tidy(contained(reason))}.`)),
      ),
    ),
  )
}

function fixRow(fix, window, { base, track, isStale }) {
  const lacks = fix.needs.filter((need) => !isAsked(need))
  const href = whatIfHref(base, window, fix.what_if)
  return h(
    "li",
    { "data-key": fix.fix },
    h("div", { class: "gain" }, h("b", { class: "number" }, ratio(fix.speed_up)), h("span", {}, "as fast")),
    h(
      "div",
      { class: "fix-words" },
      h("h3", {}, contained(fix.title)),
      h("p", {}, tidy(`${hoursWords(fix)}.`)),
      h("p", {}, contained(fix.risk)),
      lacks.length > 0 && h("p", { class: "quiet" }, needed(lacks)),
      h(
        "div",
        { class: "sure" },
        h("span", {}, confidenceBars(fix.confidence)),
        h("span", { class: "pays" }, paysWords(fix)),
        href && h("a", { href }, "Open in what-if"),
        track(fix),
      ),
    ),
    fix.paste.length > 0 &&
      h(
        "div",
        { class: "pastes" },
        fix.paste.map((each, at) => paste(each, at, isStale)),
      ),
  )
}

function paste({ label, text }, at, isStale) {
  const words = contained(label)
  return h(
    "div",
    { class: "paste", "data-key": `${at}` },
    h("span", { class: "label" }, words),
    copyOrSelectButton((button) => button.closest(".paste").querySelector("code"), {
      class: "text-button",
      "aria-label": `Copy, ${words}`,
      disabled: isStale,
    }),
    h("pre", { tabindex: "0", "aria-label": words }, h("code", {}, text)),
  )
}

function hoursWords({ gpu_hours_per_day: hours, gpu_hours_per_day_range: range }) {
  const [least, most] = range.map(roughHours)
  const cost = money(hours)
  const between = least === most ? "" : ` (${least} to ${most})`
  return `Wins about ${roughHours(hours)} GPU-hours a day${between}${cost && `, about ${cost}`}`
}

/** When a fix pays, by ski rental: as soon as the cause has cost as much as the restart will. */
function paysWords({ stops_job, pays_after_minutes: after, pays_now, stop_minutes: stop, ...rest }) {
  if (!stops_job) return "pays now, without a restart"
  if (after === null) return "takes a restart, whose cost is not known"
  const lost = `${rest.lost_is_at_least ? "at least " : ""}${minutes(rest.lost_minutes)} lost`
  if (pays_now) return `pays now: ${lost}, a restart costs ${minutes(stop)}`
  return rest.lost_minutes === null ? `pays after ${minutes(after)}` : `pays after ${minutes(after)}; ${lost} so far`
}

const minutes = (value) => (value < 1 ? "1 min" : value < 600 ? `${Math.round(value)} min` : about(60 * value))

function togetherWords({ fixes: names, speed_up, gpu_hours_per_day: hours }, fixes) {
  const numbers = names.map((name) => fixes.findIndex(({ fix }) => fix === name) + 1).sort((a, b) => a - b)
  const all = names.length === 2 ? "Both" : `All ${names.length}`
  const some = `Fixes ${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`
  const which = names.length === fixes.length ? all : some
  return tidy(`${which} together: ${ratio(speed_up)} as fast, about ${roughHours(hours)} GPU-hours a day.`)
}

/** The what-if page with the fix's edits; null where edits cannot say it, or are too long for an address. */
function whatIfHref(base, window, edits) {
  if (!edits) return null
  const text = JSON.stringify(edits)
  if (encodeURIComponent(text).length > LONGEST_VALUE) return null
  return `${base}/what-if?${new URLSearchParams({ window, edits: text })}`
}
