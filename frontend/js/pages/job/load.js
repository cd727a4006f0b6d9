/** Which windows and steps the address names, and everything above the panels that the page requests for them. */

import { hasStaleFigures } from "../../components/missing-data.js"
import { isOver } from "../../components/state-icon.js"
import { readAddress } from "../../lib/address.js"
import { getJson, getJsonOrNull } from "../../lib/api.js"
import { about, counted, isKnown, stepRange, whole } from "../../lib/formatting.js"
import { minutes } from "../../lib/times.js"

/**
 * Everything above the panels, requested in parallel where the choice allows.
 *
 * With `hasWindow` the job had a window before; else the ribbon tells, to avoid a useless request.
 */
export async function load(base, { pick, steps, time }, hasWindow) {
  const jobAsked = getJson(base)
  const ribbonAsked = getJson(`${base}/ribbon`)
  // Whichever fails first is reported; the other's rejection must not stay unhandled.
  for (const asked of [jobAsked, ribbonAsked]) asked.catch(() => {})
  const hasOne = pick !== "recent" || hasWindow || (await ribbonAsked).bins.length > 0
  const byRibbon = isByRibbon(pick) ? await ribbonAsked : null
  const ofTime = pick === "time" ? await windowsOfTime(base, time) : {}
  const window = ofTime.window ?? windowOf(ofTime.noStepThen ? "recent" : pick, byRibbon)
  const name = encodeURIComponent(window)
  const onset = pick === "since-onset" ? byRibbon.since_onset : null
  const since = onset && { since_step: String(onset.step) }
  const query = new URLSearchParams({ arrays: "false", ...(steps && { steps }), ...since })
  const [job, summary, ribbon, result] = await Promise.all([
    jobAsked,
    getJson(`${base}/headline?${new URLSearchParams({ window, ...since })}`),
    ribbonAsked,
    hasOne ? getJsonOrNull(`${base}/windows/${name}?${query}`) : null,
  ])
  const isStored = result !== null || window === "recent"
  return { job, summary, ribbon, result, window, isStored, noStepThen: ofTime.noStepThen ?? null }
}

/** The windows of a range of times, or why there are none: `{window}` or `{noStepThen}`. */
async function windowsOfTime(base, { from, to }) {
  const query = new URLSearchParams({ ...(from && { from }), ...(to && { to }) })
  try {
    return { window: (await getJson(`${base}/time-range?${query}`)).window }
  } catch (error) {
    if (error.problem?.code !== "no_step_then" && error.status !== 422) throw error
    return { noStepThen: error.message }
  }
}

/** Mean seconds of the recorded steps shown; null where there are none. */
export function meanStep({ result }) {
  const times = result?.step_time_s?.recorded ?? []
  if (!times.length) return null
  const total_s = times.reduce((total, time_s, at) => total + time_s * (result.thinned?.step_counts?.[at] ?? 1), 0)
  return total_s / numSteps(result)
}

/** Steps with figures; a value of a thinned result stands for several. */
const numSteps = ({ steps, thinned }) => thinned?.step_counts?.reduce((total, each) => total + each, 0) ?? steps.length

/** How long until the open window is complete, while its job runs; "" once that time has passed without data. */
export function timeLeft({ job, result }) {
  const times = result?.step_time_s?.recorded ?? []
  const missing = job.window_steps - times.length
  if (!times.length || missing <= 0 || hasStaleFigures(job) || isOver(job)) return ""
  const left_s = missing * meanStep({ result })
  const past_s = (Date.now() - new Date(job.last_data_at)) / 1000
  return past_s > left_s ? "" : `, about ${about(left_s)} more`
}

/**
 * The choice in the address; `pick` is "recent", "since-onset", "all", windows by their ids, or "time".
 *
 * `time` then has its `from` and `to`, of which one may be null.
 */
export function choiceInAddress() {
  const names = ["window", "steps", "worker", "step", "sort", "from", "to"]
  const { window, steps, worker, step, sort, from, to } = readAddress(...names)
  const [, dp, stage] = /^(\d+)-(\d+)$/.exec(worker ?? "") ?? []
  return {
    pick: window ?? (from || to ? "time" : "recent"),
    time: window || !(from || to) ? null : { from, to },
    steps,
    sort,
    pinned: {
      ...(dp && { dp: Number(dp), stage: Number(stage) }),
      ...(/^\d+$/.test(step ?? "") && { step: Number(step) }),
    },
  }
}

/** Whether the windows of a pick are found by the ribbon. */
const isByRibbon = (pick) => pick === "since-onset" || pick === "all"

/** The API's name of the picked windows. */
function windowOf(pick, ribbon) {
  if (pick === "since-onset") return ribbon.since_onset ? joined(ribbon.since_onset) : "recent"
  if (pick !== "all") return pick
  const newest = ribbon.bins.at(-1)
  const first = ribbon.bins.find((bin) => bin.epoch === newest?.epoch)
  return first ? joined({ from: first.from, to: newest.to }) : "recent"
}

/** The first and the last window of an API window name; null where none is shown. */
export function endsOf(window, result) {
  const id = window === "recent" ? result?.window?.id : window
  if (!id) return null
  return id.includes("..") ? id.split("..") : [id, id]
}

/** The closed window before the leading cause began, to compare with. */
export function beforeOnset({ since_onset, bins }) {
  const at = since_onset ? bins.findIndex((bin) => bin.from === since_onset.from) : -1
  return at > 0 && bins[at - 1].epoch === bins[at].epoch ? bins[at - 1].to : null
}

/** What is left of old windows; docs/operations.md. */
const KEPT_WORDS = {
  window: "old: no figures by step",
  hour: "old: figures by the hour",
  day: "old: figures by the day",
}

/** Short lines: which steps are shown, when they started, and how many of them are recorded. */
export function shownWords({ result, steps, job, left, isSinceOnset = false }) {
  if (!result?.steps?.length) return ["no complete step", result ? "in this window" : "has arrived"]
  const [first, last] = [result.steps[0], result.steps.at(-1)]
  const range = isSinceOnset ? `since step ${whole(first)}, when it began` : stepRange(first, last)
  const { state, windows } = result.window
  const lines = [range, timesOf(result)].filter(Boolean)
  if (steps) return [...lines, `of window ${result.window.id}, alone`]
  const kept = KEPT_WORDS[result.thinned?.resolution]
  if (kept) lines.push(kept)
  if (windows) return [...lines, `${counted(numSteps(result), "step")} in ${counted(windows.length, "window")}`]
  if (state !== "open") return [...lines, `${whole(numSteps(result))} recorded, ${state}`]
  return [...lines, `first figures: ${whole(result.steps.length)} of ${counted(job.window_steps, "step")}${left}`]
}

/** What to pick for steps drawn in a chart; `windows` are summaries of the run, newest first. */
export function pickOfSteps(windows, first, last) {
  const hit = windows.filter((window) => window.first_step <= last && window.last_step >= first)
  if (!hit.length) return null
  const [newest, oldest] = [hit[0], hit.at(-1)]
  if (hit.length > 1) return { pick: `${oldest.window_id}..${newest.window_id}`, steps: null }
  const isWhole = first <= oldest.first_step && last >= oldest.last_step
  if (oldest.state === "open") return { pick: "recent", steps: null }
  const steps = isWhole
    ? null
    : first === last
      ? String(first)
      : `${Math.max(first, oldest.first_step)}-${Math.min(last, oldest.last_step)}`
  return { pick: oldest.window_id, steps }
}

/** When the steps shown started: "02:41 to 02:56"; null where that is not known. */
function timesOf({ step_started_s }) {
  const known = (step_started_s ?? []).filter(isKnown)
  if (!known.length) return null
  const [from, to] = [known[0], known.at(-1)].map((at_s) => minutes(new Date(1000 * at_s)))
  return from === to ? from : `${from} to ${to}`
}

const joined = ({ from, to }) => (from === to ? from : `${from}..${to}`)
