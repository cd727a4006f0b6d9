/** Predicted fixes against what they achieved: of one job, or the newest of all jobs. */

import { getJson, getJsonOrNull, send } from "../lib/api.js"
import { announce, h, patch, place } from "../lib/dom.js"
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

/**
 * A button that follows the fix, and a line beside it for the reason of a refusal.
 *
 * `facts` are those that the fix was predicted with; null where the reader may not write.
 */
export function trackButton({ base, window, fix, title, facts, isStale, onTracked }) {
  if (!may("write")) return null
  const words = "Track this fix"
  const refusal = h("span", { class: "refused", role: "alert" })
  const track = async ({ currentTarget: button }) => {
    const line = button.parentNode.querySelector(".refused")
    line.textContent = ""
    button.disabled = true
    try {
      await trackFix(base, window, fix, facts)
      button.textContent = "Tracked"
      button.setAttribute("aria-label", `Tracked: ${contained(title)}`)
      announce(`Tracked: later windows are compared with this prediction. ${contained(title)}.`)
      onTracked()
    } catch (error) {
      button.disabled = false
      line.textContent = tidy(`Not tracked: ${contained(error.message)}`)
    }
  }
  return h(
    "span",
    { class: "track", "data-key": "track" },
    h(
      "button",
      {
        class: "text-button",
        type: "button",
        "aria-label": `${words}: ${contained(title)}`,
        disabled: isStale,
        onclick: track,
      },
      words,
    ),
    refusal,
  )
}

/** The newest predictions of the job at this base address; null where it has none. */
export async function loadFixes(base) {
  const answer = await getJsonOrNull(`${base}/fixes?limit=${MAX_ROWS}`)
  return answer?.items.length ? answer : null
}

/** The card of a job; `known` as `loadFixes` gives it, `onChange` is awaited after one was deleted. */
export function fixHistoryCard(known, onChange) {
  if (!known) return null
  forgetOthers(known.items)
  return h(
    "section",
    { class: "card fix-history", "data-key": "fix-history", "aria-label": "Fixes: predicted and achieved" },
    h("header", {}, h("h2", { tabindex: "-1" }, "Fixes: predicted and achieved")),
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
  // The note of one that is gone says what the state says, of a link more.
  const words = state === "gone" && note ? null : STATES[state]
  const rest = [applied_step === null ? `predicted for window ${window}` : contained(title), words]
  return h(
    "li",
    { "data-key": fix_id },
    h("span", { class: "what" }, ofJob && [h("a", { href: jobHref(fix) }, contained(job_id)), ": "], what(fix)),
    h("span", { class: "number" }, figures(fix)),
    h("small", {}, [...rest, note && contained(note)].filter(Boolean).join("; ")),
    onChange && may("write") && place(deletionOf(fix, onChange).node),
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

// Kept over redraws of the card, so that a question and the reason of a failure stay.
const deletions = new Map()

function deletionOf(fix, onChange) {
  const found = deletions.get(fix.fix_id) ?? new Deletion()
  deletions.set(fix.fix_id, found)
  found.show(fix, onChange)
  return found
}

function forgetOthers(fixes) {
  const ids = new Set(fixes.map(({ fix_id }) => fix_id))
  for (const id of deletions.keys()) if (!ids.has(id)) deletions.delete(id)
}

/** Deletes a prediction; one that is measured, whose outcome is lost with it, after a question. */
class Deletion {
  constructor() {
    Object.assign(this, { isAsking: false, isBusy: false, refusal: "" })
    this.node = h("span", { class: "deletion", "data-own": true })
  }

  show(fix, onChange) {
    Object.assign(this, { fix, onChange })
    this.draw()
  }

  set(changes) {
    Object.assign(this, changes)
    this.draw()
  }

  draw() {
    const { isAsking, isBusy, refusal } = this
    const title = contained(this.fix.title)
    const button = (key, look, words, label, onclick) =>
      h(
        "button",
        { class: look, type: "button", "data-key": key, "aria-label": label, disabled: isBusy, onclick },
        words,
      )
    const first = isAsking
      ? button("delete", "button is-risky", "Delete for good", `Delete for good: ${title}`, () => this.remove())
      : button("delete", "text-button", "Delete", `Delete the prediction: ${title}`, () => this.begin())
    patch(
      this.node,
      first,
      isAsking && button("no", "text-button", "Keep", `Keep the prediction: ${title}`, () => this.keep()),
      h("span", { class: "refused", role: "alert", "data-key": "refused" }, refusal),
    )
  }

  begin() {
    if (this.fix.state === "measured") this.set({ isAsking: true, refusal: "" })
    else this.remove()
  }

  keep() {
    this.set({ isAsking: false, refusal: "" })
    this.node.querySelector("[data-key=delete]").focus()
  }

  async remove() {
    const { job_id, fix_id } = this.fix
    this.set({ isBusy: true, refusal: "" })
    try {
      await send("DELETE", `/jobs/${encodeURIComponent(job_id)}/fixes/${fix_id}`)
    } catch (error) {
      const refusal = tidy(`Not deleted: ${contained(error.message)}`)
      announce(refusal)
      this.set({ isBusy: false, isAsking: false, refusal })
      this.node.querySelector("[data-key=delete]").focus()
      return
    }
    announce("Prediction deleted.")
    const heading = this.node.closest("section").querySelector("h2")
    await this.onChange()
    // With the last prediction the card is gone, too.
    const focused = heading.isConnected ? heading : document.querySelector("main h1")
    focused?.setAttribute("tabindex", "-1")
    focused?.focus()
  }
}
