/** Which jobs are in another state than before, as one sentence for who cannot see it change. */

import { contained, counted } from "../words.js"
import { STATE_WORDS } from "./mark.js"

const NAMED = 2

/** The sentence, empty where nothing changed; `before` maps job ids to states. */
export function news(before, jobs) {
  const changed = jobs.filter((job) => before.has(job.job_id) && before.get(job.job_id) !== job.state)
  const told = changed.slice(0, NAMED).map((job) => `${contained(job.name)} is now ${(STATE_WORDS[job.state] ?? job.state).toLowerCase()}.`)
  const more = changed.length - told.length
  return [...told, more > 0 && `${counted(more, "more job")} changed.`].filter(Boolean).join(" ")
}

/** The states to hold the next answer against. */
export const statesOf = (jobs) => new Map(jobs.map((job) => [job.job_id, job.state]))
