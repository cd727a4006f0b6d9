/** One host: the jobs that it was part of, and when it was slow. */

import { workerHref, workerName } from "../../components/culprits.js"
import { panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { statStrip } from "../../components/stat-strip.js"
import { getJsonOrNull } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { ago, clock, contained, counted, gpuHours, ratio, whole } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"

const NAMED_WORKERS = 4

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, params, { onRefused }) {
  const name = decodeURIComponent(params.host)
  const page = { hasLeft: false, wanted: null }
  const refresh = async () => {
    const wanted = Symbol("wanted")
    page.wanted = wanted
    const answer = await getJsonOrNull(`/hosts/${encodeURIComponent(name)}`).catch((error) => error)
    if (page.hasLeft || page.wanted !== wanted) return
    if (answer?.status === 401) return onRefused()
    // The old figures stay while the server does not answer.
    if (answer instanceof Error && page.host) return
    page.host = answer instanceof Error ? null : answer
    patch(
      root,
      crumbs(name),
      answer instanceof Error
        ? panelFailed("Could not load this host", answer, refresh)
        : answer
          ? content(answer)
          : unknown(name),
    )
  }
  refresh()
  const stop = onChange(refresh)
  return () => {
    page.hasLeft = true
    stop()
  }
}

function crumbs(name) {
  return h(
    "nav",
    { class: "crumbs", "aria-label": "Where you are" },
    h("a", { href: "/hosts" }, "Hosts"),
    h("span", { "aria-hidden": "true" }, "/"),
    h("b", {}, contained(name)),
  )
}

function content(host) {
  const jobs = new Set(host.runs.map(({ job_id }) => job_id)).size
  return [
    headline(sentence(host, jobs)),
    statStrip(stats(host, jobs)),
    h(
      "section",
      { class: "card ledger", "aria-label": "Runs" },
      h("header", {}, h("h2", {}, "Runs on this host"), h("span", { class: "explanation" }, "newest first")),
      table(host.runs),
    ),
  ]
}

function sentence({ host, jobs_blamed, gpu_hours_lost }, jobs) {
  const name = contained(host)
  const part = `It was part of ${counted(jobs, "job")}.`
  if (!jobs_blamed) return { sentence: `${name} was never slower than its peers.`, sub: part }
  const where =
    jobs === 1
      ? "in the only job"
      : jobs_blamed === jobs
        ? `in each of the ${whole(jobs)} jobs`
        : `in ${whole(jobs_blamed)} of the ${whole(jobs)} jobs`
  const price = money(gpu_hours_lost)
  return {
    sentence: `${name} was slower than its peers ${where} that it was part of.`,
    sub: `This has cost ${gpuHours(gpu_hours_lost)} GPU-hours${price && `, about ${price}`}.`,
  }
}

function stats({ jobs_blamed, worst_slowdown, gpu_hours_lost, runs }, jobs) {
  const last = runs
    .map(({ blame }) => blame?.last_seen_at)
    .filter(Boolean)
    .sort()
    .at(-1)
  return [
    { label: "Jobs", figure: whole(jobs), note: counted(runs.length, "run") },
    {
      label: "Jobs that found it slow",
      figure: whole(jobs_blamed),
      note: last ? `last ${ago(new Date(last))}` : "never",
    },
    {
      label: "Worst slowdown",
      figure: worst_slowdown === null ? null : ratio(worst_slowdown),
      note: worst_slowdown === null ? "never the culprit" : "against its peers",
    },
    {
      label: "Lost on this host",
      figure: gpuHours(gpu_hours_lost),
      unit: "GPU-h",
      note: money(gpu_hours_lost) || "in stored windows",
    },
  ]
}

function table(runs) {
  const heads = [
    ["Job"],
    ["Workers on it"],
    ["Found slow"],
    ["Worst slowdown", "number at-desk"],
    ["Lost, GPU-h", "number"],
    ["Ran", "at-desk"],
  ]
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map(([text, place]) => h("th", { scope: "col", class: place }, text)),
      ),
    ),
    h("tbody", {}, runs.map(row)),
  )
}

function row(run) {
  const { job_id, epoch, name, blame, began_at } = run
  const base = `/jobs/${encodeURIComponent(job_id)}`
  return h(
    "tr",
    { "data-key": `${epoch} ${job_id}` },
    h("th", { scope: "row" }, h("a", { href: base }, contained(name)), h("small", {}, `run ${epoch}`)),
    h("td", {}, workers(run, base)),
    h("td", {}, found(blame, base)),
    h(
      "td",
      { class: "number at-desk" },
      blame?.worst_slowdown ? ratio(blame.worst_slowdown) : h("span", { class: "quiet" }, "n/a"),
    ),
    h("td", { class: "number" }, blame ? gpuHours(blame.gpu_hours_lost) : h("span", { class: "quiet" }, "none")),
    h("td", { class: "at-desk" }, `from ${clock(new Date(began_at))}`, h("small", {}, until(run))),
  )
}

function until({ ended_at, last_data_at }) {
  if (ended_at) return `to ${clock(new Date(ended_at))}`
  return last_data_at ? `last data ${ago(new Date(last_data_at))}` : "no data yet"
}

/** Links to its workers in that run: their page has their operations against their peers'. */
function workers({ workers, num_workers, blame }, base) {
  if (num_workers === null) return h("span", { class: "quiet" }, "see the job")
  if (!num_workers) return h("span", { class: "quiet" }, "no longer stored")
  const window = blame?.last_window
  const named = workers
    .slice(0, NAMED_WORKERS)
    .map((worker) => h("a", { href: workerHref({ base, window }, worker) }, workerName(worker)))
  const more = num_workers - named.length
  return h("span", { class: "workers" }, named, more > 0 && h("span", { class: "quiet" }, `and ${whole(more)} more`))
}

function found(blame, base) {
  if (!blame) return h("span", { class: "quiet" }, "not slower than its peers")
  const { windows, first_window, last_window, last_seen_at } = blame
  const range = first_window === last_window ? first_window : `${first_window}..${last_window}`
  return [
    h("a", { href: `${base}?window=${encodeURIComponent(range)}` }, counted(windows, "window")),
    h("small", {}, `last ${ago(new Date(last_seen_at))}`),
  ]
}

function unknown(name) {
  return headline({
    sentence: `No job had a worker on ${contained(name)}.`,
    sub: "Hosts are known by the name in their workers' batches. Names are case-sensitive.",
  })
}
