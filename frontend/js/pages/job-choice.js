/** What the reader of a job's page has chosen: windows, steps, a worker, an order. */

import { chosen } from "../selection.js"
import { counted, stepRange, whole } from "../words.js"

/** The choice in the address; `pick` is "latest", "since-onset", "all", or windows by their ids. */
export function choiceInAddress() {
  const { window, steps, worker, step, sort } = chosen("window", "steps", "worker", "step", "sort")
  const [, dp, stage] = /^(\d+)-(\d+)$/.exec(worker ?? "") ?? []
  return { pick: window ?? "latest", steps, sort, pinned: { ...(dp && { dp: Number(dp), stage: Number(stage) }), ...(/^\d+$/.test(step ?? "") && { step: Number(step) }) } }
}

/** Whether the ribbon is needed to know which windows are picked. */
export const isByRibbon = (pick) => pick === "since-onset" || pick === "all"

/** What the API calls the picked windows. */
export function windowOf(pick, ribbon) {
  if (pick === "since-onset") return ribbon.since_onset ? joined(ribbon.since_onset) : "latest"
  if (pick !== "all") return pick
  const newest = ribbon.bins.at(-1)
  const first = ribbon.bins.find((bin) => bin.epoch === newest?.epoch)
  return first ? joined({ from: first.from, to: newest.to }) : "latest"
}

/** The first and the last window of what the API calls a window; null where none is shown. */
export function endsOf(window, result) {
  if (window.includes("..")) return window.split("..")
  const id = window === "latest" ? result?.window?.id : window
  return id ? [id, id] : null
}

/** The closed window before the leading cause began, to compare with. */
export function beforeOnset({ since_onset, bins }) {
  const at = since_onset ? bins.findIndex((bin) => bin.from === since_onset.from) : -1
  return at > 0 && bins[at - 1].epoch === bins[at].epoch ? bins[at - 1].to : null
}

/** Two short lines: which steps are shown, and how many of them are recorded. */
export function shownWords({ result, steps, job, left, isSinceOnset = false }) {
  if (!result?.steps?.length) return ["no complete step", result ? "in this window" : "has arrived"]
  const [first, last] = [result.steps[0], result.steps.at(-1)]
  // Windows are whole: the onset may be some steps into the first one.
  const range = isSinceOnset ? `from step ${whole(first)}, the window of the onset` : stepRange(first, last)
  const { state, windows } = result.window
  if (steps) return [range, `of window ${result.window.id}, alone`]
  if (windows) return [range, `${counted(result.steps.length, "step")} in ${counted(windows.length, "window")}`]
  if (state !== "open") return [range, `${whole(result.steps.length)} recorded, ${state}`]
  return [range, `${whole(result.steps.length)} of ${whole(job.window_steps)} complete${left}`]
}

/** What to pick for steps drawn in a chart; `windows` are summaries of the run, newest first. */
export function pickOfSteps(windows, first, last) {
  const hit = windows.filter((window) => window.first_step <= last && window.last_step >= first)
  if (!hit.length) return null
  const [newest, oldest] = [hit[0], hit.at(-1)]
  if (hit.length > 1) return { pick: `${oldest.window_id}..${newest.window_id}`, steps: null }
  const isWhole = first <= oldest.first_step && last >= oldest.last_step
  if (oldest.state === "open") return { pick: "latest", steps: null }
  const steps = isWhole ? null : first === last ? String(first) : `${Math.max(first, oldest.first_step)}-${Math.min(last, oldest.last_step)}`
  return { pick: oldest.window_id, steps }
}

const joined = ({ from, to }) => (from === to ? from : `${from}..${to}`)
