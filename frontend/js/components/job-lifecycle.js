/** Archiving, deleting and restoring jobs, one or several at once; each change can be undone. */

import { send } from "../lib/api.js"
import { contained, counted } from "../lib/formatting.js"
import { isOver } from "./state-icon.js"
import { toast } from "./toast.js"

// A job in these states has no end, and none of its workers sends: it is ended first.
const SENDS_NOTHING = new Set(["stalled"])

/** Whether a job can be archived or deleted: it has ended, or sends nothing and is ended first. */
export const hasEnded = ({ state }) => isOver({ state }) || SENDS_NOTHING.has(state)

/** What can be done to jobs, with the scope that it takes: by the name that pages use. */
export const CHANGES = {
  archive: { scope: "write", text: "Archive", done: "Archived", back: "unarchive", isOfEnded: true },
  unarchive: { scope: "write", text: "Unarchive", done: "Unarchived", back: "archive" },
  delete: {
    scope: "admin",
    text: "Delete",
    done: "Deleted",
    back: "restore",
    isOfEnded: true,
    note: "Removed for good in 24 h.",
  },
  restore: { scope: "admin", text: "Restore", done: "Restored", back: "delete" },
}

const CHANGES_OF = { active: ["archive", "delete"], archived: ["unarchive", "delete"], deleted: ["restore"] }

/** The changes that fit a job, by whether it is active, archived or deleted. */
export const changesOf = ({ lifecycle }) => CHANGES_OF[lifecycle]

/** Change jobs, show what was done with Undo, and call `after` each time; none of it throws. */
export async function changeJobs(name, jobs, after) {
  const { done, back, note } = CHANGES[name]
  const fit = jobs.filter((job) => hasEnded(job) || !CHANGES[name].isOfEnded)
  const results = []
  for (const job of fit) results.push(await change(name, job).catch((error) => error))
  const changed = fit.filter((_, at) => !(results[at] instanceof Error))
  const refusals = results.filter((result) => result instanceof Error)
  const left = jobs.filter((job) => !fit.includes(job))
  const sentences = [
    changed.length > 0 && `${done} ${namesOf(changed)}.`,
    changed.length > 0 && note,
    left.length > 0 && `Left as it was, not ended yet: ${namesOf(left)}.`,
    refusals.length === 1 && refusals[0].message,
    refusals.length > 1 && `${counted(refusals.length, "job")} refused: ${refusals[0].message}`,
  ]
  const words = sentences.filter(Boolean).join(" ")
  toast(words, changed.length > 0 ? () => changeJobs(back, changed, after) : null)
  await after()
}

function change(name, { job_id, state }) {
  const path = `/jobs/${encodeURIComponent(job_id)}`
  const end = SENDS_NOTHING.has(state) ? "?end=true" : ""
  if (name === "delete") return send("DELETE", path + end)
  return send("POST", `${path}/${name}${name === "archive" ? end : ""}`)
}

const namesOf = (jobs) => (jobs.length === 1 ? contained(jobs[0].name) : counted(jobs.length, "job"))
