/** Predicted fixes against what they achieved: of one job, or the newest of all jobs. */

import { getJson, getJsonOrNull, send } from "../lib/api.js"
import { announce, h, patch } from "../lib/dom.js"
import { capitalized, contained, ratio, tidy } from "../lib/formatting.js"
import { may } from "../lib/session.js"

const MAX_ROWS = 6
// Facts that are no numbers.
const TEXTS = ["layout", "scheduler", "expert_loads", "document_lengths"]
const STATES = {
  open: "not applied so far",
  applied: "being measured",
  gone: "the cause went away by itself",
  "not-comparable": "not comparable",
  expired: "out of date",
}
const NOTE = "Both are ratios of simulated steps. Achieved: the mean of at most three windows after the fix."

/**
 * Follow a fix of the job at this base address from now on; returns the prediction as the API has it.
 *
 * `facts` are what only the owner knows, by the API's names (`layers`, `layout`, `scheduler` and so
 * on), as numbers or as texts; empty ones are left out.
 */
function trackFix(base, window, fix, facts) {
  const given = Object.entries(facts)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [name, TEXTS.includes(name) ? value : Number(value)])
  return send("POST", `${base}/fixes`, { window, fix, ...Object.fromEntries(given) })
}

/** A button that follows the fix; it says aloud and on itself what came of it. */
export function trackButton({ base, window, fix, title, facts, onTracked }) {
  if (!may("write")) return null
  const track = async ({ currentTarget: button }) => {
    button.disabled = true
    try {
      await trackFix(base, window, fix, facts())
      button.textContent = "Tracked"
      announce(`Tracked: later windows are compared with this prediction. ${contained(title)}.`)
      onTracked()
    } catch (error) {
      button.disabled = false
      button.textContent = "Not tracked"
      announce(`Not tracked: ${error.message}`)
      button.title = error.message
    }
  }
  return h(
    "button",
    {
      class: "text-button",
      type: "button",
      "aria-label": `Track whether it was made, and what it achieved: ${contained(title)}`,
      onclick: track,
    },
    "Track this fix",
  )
}

/** The newest predictions of the job at this base address; null where it has none. */
export async function loadFixes(base) {
  const answer = await getJsonOrNull(`${base}/fixes?limit=${MAX_ROWS}`)
  return answer?.items.length ? answer : null
}

/** The card of a job; `known` as `loadFixes` gives it, `onChange` is called after one was deleted. */
export function fixHistoryCard(known, onChange) {
  if (!known) return null
  return h(
    "section",
    { class: "card fix-history", "data-key": "fix-history", "aria-label": "Fixes: predicted and achieved" },
    h("header", {}, h("h2", {}, "Fixes: predicted and achieved")),
    h(
      "ul",
      {},
      known.items.map((each) => row(each, { onChange })),
    ),
    known.next_cursor && h("p", { class: "quiet" }, "and earlier ones"),
    h("p", { class: "remark" }, NOTE),
  )
}

/** The card of the fleet: measured fixes of all jobs, the newest first; hidden while there are none. */
export class FleetFixes {
  constructor() {
    this.node = h("section", {
      class: "card fix-history is-fixes",
      "data-own": true,
      "aria-label": "Fixes: predicted and achieved",
      hidden: true,
    })
  }

  /** Fetch them again; an error leaves the card as it was. */
  async load() {
    const answer = await getJson(`/fixes?state=measured&limit=${MAX_ROWS}`).catch(() => null)
    if (!answer) return
    this.node.hidden = !answer.items.length
    patch(
      this.node,
      h("header", {}, h("h2", {}, "Fixes: predicted and achieved")),
      h(
        "ul",
        {},
        answer.items.map((each) => row(each, { ofJob: true })),
      ),
      h("p", { class: "remark" }, NOTE),
    )
  }
}

function row(fix, { ofJob = false, onChange = null }) {
  const { fix_id, job_id, title, state, note, window, applied_step } = fix
  const rest = [applied_step === null ? `predicted for window ${window}` : contained(title), STATES[state]]
  return h(
    "li",
    { "data-key": fix_id },
    h("span", { class: "what" }, ofJob && [h("a", { href: jobHref(fix) }, contained(job_id)), ": "], what(fix)),
    h("span", { class: "number" }, figures(fix)),
    h("small", {}, [...rest, note && contained(note)].filter(Boolean).join("; ")),
    onChange && may("write") && deleteButton(fix, job_id, onChange),
  )
}

/** What was done, without its figures ("Re-split at step 4,120"), or what is to be done. */
function what({ title, sentence, applied_step }) {
  return tidy(contained(applied_step === null ? title : capitalized(sentence.split(": ")[0])))
}

function figures({ speed_up, achieved_speed_up }) {
  const predicted = `predicted ${ratio(speed_up)}`
  return achieved_speed_up === null ? predicted : `${predicted}, achieved ${ratio(achieved_speed_up)}`
}

function jobHref({ job_id, windows }) {
  const page = `/jobs/${encodeURIComponent(job_id)}`
  return windows.length ? `${page}?window=${encodeURIComponent(windows[0])}` : page
}

function deleteButton({ fix_id, title }, jobId, onChange) {
  const remove = async () => {
    await send("DELETE", `/jobs/${encodeURIComponent(jobId)}/fixes/${fix_id}`).catch(() => null)
    announce("Prediction deleted.")
    onChange()
  }
  return h(
    "button",
    {
      class: "text-button",
      type: "button",
      "aria-label": `Delete the prediction: ${contained(title)}`,
      onclick: remove,
    },
    "Delete",
  )
}
