/** Who of a job is silent, and since when; and what came of its operations that no figure has. */

import { clock, counted, whole } from "../words.js"

const NAMED = 3

/** Of a job in these states, the figures are those of before. */
const OLD = new Set(["stalled", "silent", "stale"])

/** Whether what is known of the job's figures is of another time than now. */
export const hasOldFigures = (job) => OLD.has(job.state)

/** What a table's cell says, in two lines; null where all workers send. */
export function silenceInShort(job) {
  if (job.state === "stalled") return ["no worker sends", since(job.stalled_since)]
  if (job.state === "silent") return [`${silentRanks(job)} silent`, [since(job.silent_since), othersGoOn(job)].filter(Boolean).join("; ")]
  if (job.state === "stale") return ["no consumer is running", since(job.last_data_at)]
  return null
}

/** How many jobs are stalled, silent in part or stale, as a sentence; empty where none is. */
export function silenceOfAll(jobs) {
  const count = (state) => jobs.filter((job) => job.state === state).length
  const told = [
    [count("stalled"), "is stalled", "are stalled"],
    [count("silent"), "has silent ranks", "have silent ranks"],
    [count("stale"), "is stale", "are stale"],
  ]
  const parts = told.filter(([number]) => number).map(([number, one, more], index) => `${index ? whole(number) : counted(number, "job")} ${number === 1 ? one : more}`)
  return parts.length ? `${parts.join(", ")}.` : ""
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
export function leftOut({ ingest }) {
  if (!ingest) return null
  const { lost_batches, conflict, late, dead, last_conflict } = ingest
  const last = last_conflict ? ` (last: rank ${last_conflict.rank}, batch ${whole(last_conflict.batch_seq)})` : ""
  const parts = [
    lost_batches && `${whole(lost_batches)} ${lost_batches === 1 ? "batch" : "batches"} lost on the way`,
    conflict && `${counted(conflict, "operation")} in conflict${last}`,
    late && `${counted(late, "operation")} too late`,
    dead && `${counted(dead, "operation")} in dead letters`,
  ].filter(Boolean)
  return parts.length ? `In no figure of this run: ${parts.join(", ")}.` : null
}

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

function othersGoOn({ parallelism, num_silent_ranks }) {
  const others = parallelism.dp_size * parallelism.pp_size - num_silent_ranks
  return others === 1 ? "1 other goes on" : `${whole(others)} others go on`
}

/** Short enough for a table: the time, or the day when that is another one. */
function since(moment) {
  if (!moment) return ""
  const [first, ...time] = clock(new Date(moment)).split(" ")
  return `since ${time.length ? first : first.slice(0, 5)}`
}
