/** All jobs, the one that loses most first. */

import { getAll, getJson } from "../api.js"
import { headline } from "../components/headline.js"
import { stateMark } from "../components/mark.js"
import { noteBar } from "../components/note-bar.js"
import { hasOldFigures, silenceInShort, silenceOfAll } from "../components/silence.js"
import { sparkline } from "../components/sparkline.js"
import { statStrip } from "../components/stat-strip.js"
import { h, patch } from "../dom.js"
import { onChange } from "../live.js"
import { NOT_MEASURED, ago, clock, contained, counted, percentNumber, ratio, shape, whole } from "../words.js"
import { firstStart } from "./first-start.js"

export const path = /^\/$/
export const title = "Fleet"

const NUM_WINDOWS = 48
const MIN_CULPRIT_SLOWDOWN = 1.02

// As in app/charts/workers.py: a worker with this share of the slowest one's excess is as slow.
const AS_SLOW = 0.67

/** Draw the fleet into `root`; gives back how to leave. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { jobs: null, details: new Map(), order: [], way: "Python", error: null, left: false }
  const draw = () => {
    if (page.left) return
    if (!page.jobs) patch(root, page.error ? failed(page.error, () => refresh(null)) : null)
    else if (page.jobs.length === 0) patch(root, firstStart({ way: page.way, onWay: (way) => ((page.way = way), draw()) }))
    else patch(root, content(page, root, () => refresh(null)))
  }
  const refresh = async (changed) => {
    try {
      page.jobs = await getAll("/jobs")
      page.error = null
      setSubject({ kind: page.jobs.length ? "fleet" : "empty" })
    } catch (error) {
      if (error.status === 401) return onRefused()
      page.error = error
    }
    draw()
    for (const { job_id } of page.jobs ?? []) {
      if (!changed || changed.has(job_id) || !page.details.has(job_id)) loadDetails(job_id)
    }
  }
  const hasWindow = (jobId) => page.jobs.find((job) => job.job_id === jobId)?.latest_window
  const loadDetails = async (jobId) => {
    if (!hasWindow(jobId)) return
    const base = `/jobs/${encodeURIComponent(jobId)}/windows`
    const [windows, workers] = await Promise.allSettled([
      getJson(`${base}?limit=${NUM_WINDOWS}`),
      getJson(`${base}/latest/workers`),
    ])
    page.details.set(jobId, { windows: windows.value?.items ?? [], slowest: slowestOf(workers.value) })
    draw()
  }
  refresh(null)
  const stop = onChange(refresh)
  return () => {
    page.left = true
    stop()
  }
}

function content(page, root, retry) {
  return [
    headline(withSilence(sentence(page.jobs), page.jobs)),
    page.error && noteBar({ fact: `Figures are as of ${clock(page.error.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: retry } }),
    statStrip(stats(page.jobs)),
    table(page, root),
  ]
}

function failed(error, retry) {
  return h(
    "div",
    { class: "card panel-state" },
    h("b", {}, "Could not load the jobs"),
    h("p", {}, error.message),
    h("button", { class: "text-button", type: "button", onclick: retry }, "Try again"),
  )
}

const NOT_RUNNING = new Set(["finished", "stalled", "stale"])
const isRunning = (job) => !NOT_RUNNING.has(job.state)

/** The slowdown, unless the simulation is too far off to be believed. */
const slowdownOf = (job) => (job.latest_window?.verdict === "low" ? null : job.slowdown)

/** GPUs' worth of time lost at this moment; null when there is no figure of now. */
function gpusLost(job) {
  return hasFiguresOfNow(job) ? job.gpus * job.gpu_time_wasted : null
}

const hasFiguresOfNow = (job) => isRunning(job) && !hasOldFigures(job) && slowdownOf(job) !== null

const sum = (numbers) => numbers.reduce((total, number) => total + (number ?? 0), 0)

function sentence(jobs) {
  const losing = jobs.filter((job) => job.state === "straggling")
  const perDay = 24 * sum(losing.map(gpusLost))
  if (!losing.length) {
    const measured = jobs.filter(hasFiguresOfNow).length
    const told = measured ? nothingStandsOut(measured) : noFigures(jobs)
    return { ...told, sentence: `${counted(jobs.length, "job")}. ${told.sentence}` }
  }
  const worst = losing.reduce((a, b) => (gpusLost(b) > gpusLost(a) ? b : a))
  const verb = losing.length === 1 ? "is losing time. It costs" : "are losing time. Together they cost"
  return {
    sentence: `${losing.length} of ${counted(jobs.length, "job")} ${verb} ${whole(perDay)} GPU-hours a day.`,
    sub: `${contained(worst.name)} loses most: it runs at ${ratio(worst.slowdown)} of its ideal.`,
  }
}

function nothingStandsOut(measured) {
  const sub = `${counted(measured, "job")} ${measured === 1 ? "has" : "have"} figures of now; nothing stands out.`
  return { sentence: "None is straggling.", sub }
}

/** What to say where no figure is of now: there may be some of before, which the table shows. */
function noFigures(jobs) {
  if (hasOnlyOldFigures(jobs)) return { sentence: "No figures of now.", sub: "" }
  return { sentence: "No figures yet.", sub: "The first figure of a job comes with its first complete step." }
}

const hasOnlyOldFigures = (jobs) => jobs.some((job) => slowdownOf(job) !== null)

function withSilence({ sentence, sub }, jobs) {
  return { sentence, sub: [sub, silenceOfAll(jobs)].filter(Boolean).join(" ") }
}

function stats(jobs) {
  const running = jobs.filter(isRunning)
  const measured = running.filter(hasFiguresOfNow)
  const lost = sum(measured.map(gpusLost))
  const gpus = sum(measured.map((job) => job.gpus))
  const straggling = jobs.filter((job) => job.state === "straggling")
  return [
    { label: "Jobs", figure: whole(jobs.length), note: `${running.length} running, ${jobs.length - running.length} finished, stalled or stale` },
    { label: "GPUs watched", figure: whole(sum(running.map((job) => job.gpus))), note: `${whole(gpus)} with figures of now` },
    {
      label: "GPU time being lost now",
      figure: measured.length ? percentNumber(lost / gpus) : null,
      unit: "%",
      note: measured.length ? `${lost >= 10 ? whole(lost) : lost.toFixed(1)} GPU-h per hour` : hasOnlyOldFigures(jobs) ? "no job has figures of now" : "no job has figures yet",
    },
    { label: "Straggling jobs", figure: whole(straggling.length), note: `of ${counted(running.length, "running job")}` },
  ]
}

function table(page, root) {
  const jobs = ordered(page, root)
  return h(
    "section",
    { class: "card fleet", "aria-label": "Jobs" },
    h(
      "div",
      { class: "head" },
      ["State", "Job"].map((text) => h("span", {}, text)),
      h("span", { class: "number" }, "Slowdown"),
      h("span", { class: "at-middle" }, "Last 48 windows, 1.0\u00d7 to 1.5\u00d7"),
      h("span", {}, "Slowest worker"),
      h("span", { class: "at-wide" }, "Last data"),
      h("span", { class: "number at-wide" }, "GPUs"),
      h("span", { class: "number" }, "Lost, GPU-h/day"),
    ),
    jobs.map((job) => row(job, page.details.get(job.job_id))),
  )
}

/** Jobs by what they lose; the order stays while the reader is pointing at the table. */
function ordered(page, root) {
  const shown = root.querySelector(".fleet")
  const isHeld = shown?.matches(":hover") || shown?.contains(document.activeElement)
  const place = new Map(page.order.map((jobId, index) => [jobId, index]))
  const lost = (job) => gpusLost(job) ?? -1
  const byLoss = [...page.jobs].sort((a, b) => lost(b) - lost(a) || a.job_id.localeCompare(b.job_id))
  const jobs = isHeld ? byLoss.sort((a, b) => (place.get(a.job_id) ?? Infinity) - (place.get(b.job_id) ?? Infinity)) : byLoss
  page.order = jobs.map((job) => job.job_id)
  return jobs
}

function row(job, details) {
  const lost = gpusLost(job)
  return h(
    "a",
    { class: "row", href: `/jobs/${encodeURIComponent(job.job_id)}`, "data-key": job.job_id },
    stateMark(job.state),
    h("span", { class: "job" }, h("b", {}, contained(job.name)), h("small", {}, shape(job.parallelism))),
    h("span", { class: "number slowdown" }, figure(slowdownOf(job), ratio)),
    sparkline(details?.windows ?? [], hasOldFigures(job)),
    slowestCell(job, details?.slowest),
    h("span", { class: "at-wide at-desk" }, lastData(job)),
    h("span", { class: "number at-wide at-desk" }, whole(job.gpus)),
    h("span", { class: lost === null ? "number lost is-unknown" : "number lost" }, figure(lost, perDay)),
  )
}

const perDay = (gpus) => (24 * gpus < 10 ? (24 * gpus).toFixed(1) : whole(24 * gpus))

function figure(value, write) {
  return value === null ? h("span", { class: "quiet" }, NOT_MEASURED) : h("b", {}, write(value))
}

function lastData(job) {
  if (!job.last_data_at) return h("span", { class: "quiet" }, "none yet")
  const step = job.last_step === null ? null : h("small", {}, `step ${whole(job.last_step)}`)
  return [ago(new Date(job.last_data_at)), step]
}

/** The slowest worker; `isWholeStage` when most of its stage is about as slow. */
function slowestOf(workers) {
  if (!workers?.worker_slowdown) return null
  let slowest = null
  workers.worker_slowdown.forEach((stages, dpRank) =>
    stages.forEach((slowdown, stage) => {
      if (slowdown !== null && slowdown > (slowest?.slowdown ?? 0)) slowest = { dpRank, stage, slowdown, host: workers.hosts[dpRank][stage] }
    }),
  )
  if (!slowest) return null
  const others = workers.worker_slowdown.map((stages) => stages[slowest.stage]).filter((_, dpRank) => dpRank !== slowest.dpRank)
  const asSlow = others.filter((slowdown) => slowdown - 1 > AS_SLOW * (slowest.slowdown - 1))
  return { ...slowest, isWholeStage: others.length > 0 && asSlow.length >= others.length / 2 }
}

function slowestCell(job, slowest) {
  const words = (text, more) => h("span", { class: "at-desk" }, text, more && h("small", {}, more))
  const silence = silenceInShort(job)
  if (silence) return words(...silence)
  if (job.latest_window?.verdict === "low") return words("withheld", "simulation too far off")
  if (job.state === "not-analysed") return words(`${whole(job.latest_window?.num_steps ?? 0)} of ${whole(job.window_steps)} complete steps`)
  if (!slowest) return h("span", { class: "at-desk quiet" }, NOT_MEASURED)
  if (slowest.slowdown < MIN_CULPRIT_SLOWDOWN) return h("span", { class: "at-desk quiet" }, "none stands out")
  if (slowest.isWholeStage) return words(`stage ${slowest.stage}, most dp ranks`, `each up to ${ratio(slowest.slowdown)} alone`)
  const where = slowest.host ? `${contained(slowest.host)}, ` : ""
  return words(`dp ${slowest.dpRank}, stage ${slowest.stage}`, `${where}${ratio(slowest.slowdown)} alone`)
}
