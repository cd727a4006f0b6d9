/** What a job's page asks the server for, besides its charts. */

import { getJson, getJsonOrNull } from "../api.js"
import { hasOldFigures } from "../components/silence.js"
import { about } from "../words.js"
import { isByRibbon, windowOf } from "./job-choice.js"

/**
 * Everything above the panels, asked for at once where the choice allows.
 *
 * `hasWindow` tells that the job had one before; else the ribbon tells, so that nothing is asked for in vain.
 */
export async function load(base, { pick, steps }, hasWindow) {
  const jobAsked = getJson(base)
  const ribbonAsked = getJson(`${base}/ribbon`)
  // A refusal of the other one is told by whichever comes first.
  for (const asked of [jobAsked, ribbonAsked]) asked.catch(() => {})
  const hasOne = pick !== "latest" || hasWindow || (await ribbonAsked).bins.length > 0
  const window = windowOf(pick, isByRibbon(pick) ? await ribbonAsked : null)
  const name = encodeURIComponent(window)
  const query = new URLSearchParams({ arrays: "false", ...(steps && { steps }) })
  const [job, told, ribbon, result] = await Promise.all([
    jobAsked,
    getJson(`${base}/headline?window=${name}`),
    ribbonAsked,
    hasOne ? getJsonOrNull(`${base}/windows/${name}?${query}`) : null,
  ])
  return { job, told, ribbon, result, window, isStored: result !== null || pick === "latest" }
}

/** Mean seconds of the recorded steps shown; null where there are none. */
export function meanStep({ result }) {
  const times = result?.step_time_s?.recorded ?? []
  return times.length ? times.reduce((total, time_s) => total + time_s, 0) / times.length : null
}

/** How long until the open window is full, where its job goes on; "" once that has passed without data. */
export function timeLeft({ job, result }) {
  const times = result?.step_time_s?.recorded ?? []
  const missing = job.window_steps - times.length
  if (!times.length || missing <= 0 || hasOldFigures(job) || job.state === "finished") return ""
  const left_s = missing * meanStep({ result })
  const past_s = (Date.now() - new Date(job.last_data_at)) / 1000
  return past_s > left_s ? "" : `, about ${about(left_s)} more`
}
