/** One job: what it costs, who and what is slow, step by step. */

import { getJson, getJsonOrNull } from "../api.js"
import { headline } from "../components/headline.js"
import { jobStats } from "../components/job-stats.js"
import { noteBar } from "../components/note-bar.js"
import { leftOut, hasOldFigures, silenceNote } from "../components/silence.js"
import { windowBar } from "../components/window-bar.js"
import { announce, h, patch } from "../dom.js"
import { onChange } from "../live.js"
import { onTheme } from "../theme.js"
import { STATE_WORDS } from "../components/mark.js"
import { contained, counted, ratio, shape, stepRange } from "../words.js"
import { Panels } from "./job-panels.js"

export const path = /^\/jobs\/(?<jobId>[^/]+)$/
export const title = "Job"

const NUM_WINDOWS = 100

/** Draw one job into `root`; gives back how to leave. */
export function render(root, { jobId }, { setSubject, onRefused }) {
  const base = `/jobs/${jobId}`
  const page = { picked: pickedInAddress(), job: null, left: false }
  const slots = { head: slot(), stats: slot(), window: slot(), panels: slot() }
  const panels = new Panels(slots.panels, base)

  const draw = () => {
    if (page.left || !page.job) return
    document.title = `${contained(page.job.name)} \u00b7 Paceline`
    patch(slots.head, crumbs(page.job), headline(page.told), notes(page, pick))
    const inNoFigure = leftOut(page.job)
    patch(slots.stats, jobStats(page.job, page.result), inNoFigure && h("p", { class: "left-out" }, inNoFigure))
    patch(slots.window, windowBar({ windows: page.windows, picked: page.picked, shown: page.shown, onPick: pick, windowSteps: page.job.window_steps, step_s: stepTime(page) }))
    slots.window.querySelector("select").value = page.picked
  }
  const refresh = async () => {
    try {
      const before = page.job?.state
      await load(page, base)
      setSubject({ kind: "job", job: page.job })
      if (before && before !== page.job.state) announce(`${contained(page.job.name)}: ${STATE_WORDS[page.job.state]}`)
      draw()
      panels.load(page)
    } catch (error) {
      if (page.left) return
      if (error.status === 401) onRefused()
      else if (!page.job) patch(slots.head, failed(jobId, error, refresh))
    }
  }
  const pick = (windowId) => {
    const query = windowId === "latest" ? "" : `?window=${encodeURIComponent(windowId)}`
    history.pushState(null, "", location.pathname + query)
    page.picked = windowId
    panels.forgetOrder()
    refresh()
  }

  patch(root, Object.values(slots))
  refresh()
  const stops = [onChange((changed) => (!changed || changed.has(decodeURIComponent(jobId))) && refresh()), onTheme(() => panels.load(page, true))]
  return () => {
    page.left = true
    panels.remove()
    for (const stop of stops) stop()
  }
}

/** Seconds that a step of the shown window takes; null when the job no longer runs or has none. */
function stepTime({ job, result }) {
  const times = result?.step_time_s?.recorded ?? []
  if (!times.length || hasOldFigures(job) || job.state === "finished") return null
  return times.reduce((total, time_s) => total + time_s, 0) / times.length
}

function slot() {
  return h("div", { "data-own": true })
}

function pickedInAddress() {
  return new URLSearchParams(location.search).get("window") ?? "latest"
}

/** Everything above the panels, asked for at once. */
async function load(page, base) {
  const picked = encodeURIComponent(page.picked)
  const [job, told, windows] = await Promise.all([
    getJson(base),
    getJson(`${base}/headline`),
    getJson(`${base}/windows?limit=${NUM_WINDOWS}`),
  ])
  const hasResult = page.picked !== "latest" || job.latest_window
  const result = hasResult ? await getJsonOrNull(`${base}/windows/${picked}`) : null
  const shown = windows.items.find((window) => window.window_id === result?.window?.id) ?? null
  Object.assign(page, { job, told: page.picked === "latest" ? told : toldOfThePast(shown, told), result, shown, windows: windows.items })
}

/** The server's sentence is about now; a window of the past gets its own. */
function toldOfThePast(shown, now) {
  if (!shown) return { sentence: "This window is not stored.", sub: `Now: ${now.sentence}` }
  const steps = stepRange(shown.first_step, shown.last_step).replace(/^s/, "S")
  if (shown.verdict === "low") return { sentence: `${steps}: the simulation is too far off to tell how slow they were.`, sub: `Now: ${now.sentence}` }
  const sentence = shown.slowdown === null ? `${steps}: not measured.` : `${steps} ran at ${ratio(shown.slowdown)} of the ideal.`
  return { sentence, sub: `Now: ${now.sentence}` }
}

function crumbs(job) {
  const more = [job.framework].filter(Boolean).map((text) => `, ${contained(text)}`)
  return h(
    "div",
    { class: "crumbs" },
    h("a", { href: "/" }, "Fleet"),
    h("span", {}, "/"),
    h("b", {}, contained(job.name)),
    h("span", { class: "shape" }, `${shape(job.parallelism)}, ${counted(job.gpus, "GPU")}`, more),
  )
}

function notes(page, pick) {
  const { job, shown } = page
  if (page.picked !== "latest") {
    const consequence = shown ? "The job has moved on since." : "It is not stored."
    return noteBar({ fact: "This is a window of the past.", consequence, act: { text: "Follow latest", onclick: () => pick("latest") } })
  }
  const silence = silenceNote(job, page.result)
  return silence && noteBar(silence)
}

function failed(jobId, error, retry) {
  const missing = error.status === 404
  return h(
    "div",
    { class: "card panel-state" },
    h("b", {}, missing ? `There is no job ${contained(decodeURIComponent(jobId))}` : "Could not load this job"),
    h("p", {}, error.message),
    missing ? h("a", { href: "/" }, "Back to the fleet") : h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}
