/** Missing data of a job: which ranks are silent, since when, and which operations are in no figure. */

import { h } from "../lib/dom.js"
import { clock, contained, counted, whole } from "../lib/formatting.js"
import { workerHref, workerName } from "./culprits.js"

const NAMED = 3

/** States of jobs whose figures are out of date. */
const OLD = new Set(["stalled", "silent", "unknown"])

/** Whether the job's figures are out of date. */
export const hasStaleFigures = (job) => OLD.has(job.state)

/** Two short texts for the job's line in the fleet; null where all workers send. */
export function missingDataInShort(job) {
  if (job.state === "stalled") return ["no worker sends", "hangs or cut off"]
  if (job.state === "silent") return [`${silentRanks(job)} silent`, othersGoOn(job)]
  if (job.state === "crashed" || job.state === "preempted") return [contained(job.silence ?? job.state), "has ended"]
  if (job.state === "unknown") return ["Paceline is behind", contained(job.silence ?? "sent data is queued")]
  return null
}

/** The fact and the consequence of a note bar; null where the figures are up to date.
 *
 * `result` is the latest window with its steps: of those that it spans, only some have figures.
 */
export function missingDataNote(job, result) {
  if (!hasStaleFigures(job) || !job.last_data_at) return null
  return { fact: asOf(job, result), consequence: CONSEQUENCES[job.state] }
}

const CONSEQUENCES = {
  stalled: "They do not describe the job now. New data is analysed as soon as it arrives.",
  silent: "Later steps lack the silent ranks. Analysis resumes once they send again.",
  unknown: "What the job does now is not known: later data waits, and is analysed once Paceline has caught up.",
}

/** Operations that no figure includes, in one line; null where there are none. */
export function excludedOperations({ ingest, drops }) {
  if (!ingest) return null
  const { lost_batches, conflict, late, dead, last_conflict } = ingest
  const last = last_conflict ? ` (last: rank ${last_conflict.rank}, batch ${whole(last_conflict.batch_seq)})` : ""
  const parts = [
    lost_batches && `${whole(lost_batches)} ${lost_batches === 1 ? "batch" : "batches"} lost on the way`,
    conflict && `${counted(conflict, "operation")} in conflict${last}`,
    late && `${counted(late, "operation")} too late`,
    dead && `${counted(dead, "operation")} in dead letters`,
    drops?.total && `${counted(drops.total, "operation")} dropped by recorders`,
  ].filter(Boolean)
  return parts.length ? `Not in the figures of this run: ${parts.join(", ")}.` : null
}

/** The ranks that are silent now, in words; null where there are none. */
export const silentRanksNow = (job) => (job.state === "silent" ? silentRanks(job) : null)

/** The remark above findings that are older than the missing data; null where no rank is silent. */
export function silentRanksRemark(job, page) {
  if (!silentRanksNow(job)) return null
  const named = job.silent_ranks
    .slice(0, NAMED)
    .map((rank, at) => [at > 0 && ", ", whole(rank), ...placeOf(job.silent_workers[at], page)])
  const more = job.num_silent_ranks - named.length
  const has = job.num_silent_ranks === 1 ? "has" : "have"
  const since = job.silent_since ? ` since ${clock(new Date(job.silent_since))}` : ""
  return [
    "These findings are of the window before. Since then, ",
    job.num_silent_ranks === 1 ? "rank " : "ranks ",
    named,
    more > 0 && ` and ${whole(more)} more`,
    ` ${has} sent nothing${since}.`,
  ]
}

/** The worker of a rank; nothing where more ranks than workers are listed. */
const placeOf = (worker, page) =>
  worker ? [" (", h("a", { href: workerHref(page, worker) }, workerName(worker)), ")"] : []

function asOf(job, result) {
  if (job.state !== "silent") {
    const step = job.last_step === null ? "" : `, step ${whole(job.last_step)}`
    return `Figures are as of ${clock(new Date(job.last_data_at))}${step}.`
  }
  const last = result?.steps?.at(-1)
  if (last !== undefined) return `Figures end with step ${whole(last)}.`
  return job.latest_window ? "Figures end before the missing data." : "There are no figures."
}

function silentRanks({ silent_ranks, num_silent_ranks }) {
  if (num_silent_ranks === 1) return `rank ${silent_ranks[0]}`
  const named = silent_ranks.slice(0, NAMED).join(", ")
  return `ranks ${named}${num_silent_ranks > NAMED ? ` and ${whole(num_silent_ranks - NAMED)} more` : ""}`
}

function othersGoOn({ parallelism, num_silent_workers }) {
  const others = parallelism.dp_size * parallelism.pp_size - num_silent_workers
  return others === 1 ? "1 other sends" : `${whole(others)} others send`
}
