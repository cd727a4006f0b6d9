/** Who of a job is silent, and since when; and what came of its operations that no figure has. */

import { h } from "../dom.js"
import { clock, counted, whole } from "../words.js"
import { workerHref, workerName } from "./culprits.js"

const NAMED = 3

/** Of a job in these states, the figures are those of before. */
const OLD = new Set(["stalled", "silent", "stale"])

/** Whether what is known of the job's figures is of another time than now. */
export const hasOldFigures = (job) => OLD.has(job.state)

/** What a line of the fleet says: the fact, and what of it; null where all workers send. */
export function silenceInShort(job) {
  if (job.state === "stalled") return ["no worker sends", "hangs or cut off"]
  if (job.state === "silent") return [`${silentRanks(job)} silent`, othersGoOn(job)]
  if (job.state === "stale") return ["no consumer is running", "what is sent is kept"]
  return null
}

/** The fact and the consequence of a note bar; null where the figures are of now.
 *
 * `result` is the latest window with its steps: of those that it spans, only some have figures.
 */
export function silenceNote(job, result) {
  if (!hasOldFigures(job) || !job.last_data_at) return null
  return { fact: asOf(job, result), consequence: CONSEQUENCES[job.state] }
}

const CONSEQUENCES = {
  stalled: "They do not describe the job now. Paceline keeps listening and goes back to live by itself.",
  silent: "Later steps lack the silent ranks. Paceline goes on by itself once they send again.",
  stale: "They do not describe the job now. What its workers send is analysed once a consumer runs.",
}

/** What is in no figure, in one line; null where that is nothing. */
export function leftOut({ ingest, drops }) {
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
  return parts.length ? `In no figure of this run: ${parts.join(", ")}.` : null
}

/** Who is silent now, in words; null where nobody is, or nobody in particular. */
export const silentNow = (job) => (job.state === "silent" ? silentRanks(job) : null)

/** What the findings of the window before the silence say first; null where nobody is silent. */
export function silenceFirst(job, page) {
  if (!silentNow(job)) return null
  const named = job.silent_ranks.slice(0, NAMED).map((rank, at) => [at > 0 && ", ", whole(rank), ...placeOf(job.silent_workers[at], page)])
  const more = job.num_silent_ranks - named.length
  const has = job.num_silent_ranks === 1 ? "has" : "have"
  const since = job.silent_since ? ` since ${clock(new Date(job.silent_since))}` : ""
  return ["These findings are of the window before; ", job.num_silent_ranks === 1 ? "rank " : "ranks ", named, more > 0 && ` and ${whole(more)} more`, ` ${has} sent nothing${since}.`]
}

/** Whose rank it is; nothing where a version that wrote no workers told of the silence. */
const placeOf = (worker, page) => (worker ? [" (", h("a", { href: workerHref(page, worker) }, workerName(worker)), ")"] : [])

function asOf(job, result) {
  if (job.state !== "silent") return `Figures are as of ${clock(new Date(job.last_data_at))}${job.last_step === null ? "" : `, step ${whole(job.last_step)}`}.`
  const last = result?.steps?.at(-1)
  if (last !== undefined) return `Figures end with step ${whole(last)}.`
  return job.latest_window ? "Figures end before the silence." : "There are no figures."
}

function silentRanks({ silent_ranks, num_silent_ranks }) {
  if (num_silent_ranks === 1) return `rank ${silent_ranks[0]}`
  const named = silent_ranks.slice(0, NAMED).join(", ")
  return `ranks ${named}${num_silent_ranks > NAMED ? ` and ${whole(num_silent_ranks - NAMED)} more` : ""}`
}

function othersGoOn({ parallelism, num_silent_workers }) {
  const others = parallelism.dp_size * parallelism.pp_size - num_silent_workers
  return others === 1 ? "1 other goes on" : `${whole(others)} others go on`
}
