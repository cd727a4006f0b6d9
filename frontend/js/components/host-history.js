/** The card that tells whether the culprit's host was slow in other jobs too. */

import { h } from "../lib/dom.js"
import { ago, contained, ratio, whole } from "../lib/formatting.js"
import { hostHref } from "./culprits.js"

const MAX_JOBS = 5

/** The card; `host` is the API's answer for the host, null where there is none. */
export function hostHistoryCard({ host, jobId }) {
  if (!host) return null
  const others = byJob(host.runs.filter((run) => run.job_id !== jobId))
  const slow = others.filter(({ blame }) => blame)
  return h(
    "section",
    { class: "card", "data-key": "host-elsewhere", "aria-label": "Host in other jobs" },
    h("header", {}, h("h2", {}, h("a", { href: hostHref(host.host) }, contained(host.host)), " in other jobs")),
    slow.length > 0 && h("dl", { class: "facts" }, slow.slice(0, MAX_JOBS).map(row)),
    h("p", { class: "quiet" }, sentence(others.length, slow.length)),
  )
}

/** One run of each job: the newest that found the host slow, else the newest. */
function byJob(runs) {
  const found = new Map()
  for (const run of runs) {
    const known = found.get(run.job_id)
    if (!known || (!known.blame && run.blame)) found.set(run.job_id, run)
  }
  return [...found.values()]
}

function row({ job_id, name, blame }) {
  const slowdown = blame.worst_slowdown === null ? "" : `${ratio(blame.worst_slowdown)}, `
  const href = `/jobs/${encodeURIComponent(job_id)}?window=${encodeURIComponent(blame.last_window)}`
  return [
    h("dt", {}, h("a", { href }, contained(name))),
    h("dd", {}, `${slowdown}${ago(new Date(blame.last_seen_at))}`),
  ]
}

function sentence(others, slow) {
  if (!others) return "Not seen in any other job."
  const jobs = others === 1 ? "the other job" : `the ${whole(others)} other jobs`
  if (!slow) return `Not slow in ${jobs} that it was part of.`
  if (slow === others) return `Slow in ${others === 1 ? jobs : `each of ${jobs}`} that it was part of, too.`
  return `Slow in ${whole(slow)} of ${jobs} that it was part of.`
}
