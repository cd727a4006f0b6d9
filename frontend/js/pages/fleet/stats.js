/** The figures of the whole fleet. */

import { statStrip } from "../../components/stat-strip.js"
import { gpuHours, percentNumber, roughHours, whole } from "../../lib/formatting.js"

/** The strip; `summary` is that of GET /fleet, `isOld` when the server did not answer since. */
export function fleetStats(summary, money, isOld) {
  const stats = [jobs(summary), gpus(summary), today(summary, money), now(summary, money), alerts(summary)]
  return statStrip(stats.map((stat) => ({ ...stat, isOld })))
}

function jobs({ jobs, by_state }) {
  const sum = (...states) => states.reduce((total, state) => total + (by_state[state] ?? 0), 0)
  const groups = [
    [sum("crashed"), "crashed"],
    [sum("stalled"), "stalled"],
    [sum("silent"), "silent"],
    [sum("straggling"), "straggling"],
    [sum("healthy"), "healthy"],
    [sum("unknown"), "unknown"],
    [sum("low-fidelity", "not-analysed"), "without current figures"],
    [sum("preempted"), "preempted"],
    [sum("finished"), "finished"],
  ]
  const parts = groups.filter(([number]) => number).map(([number, words]) => `${whole(number)} ${words}`)
  return { label: "Jobs", figure: whole(jobs), note: parts.join(", ") }
}

function gpus({ gpus, gpus_measured }) {
  return { label: "GPUs watched", figure: whole(gpus), note: `${whole(gpus_measured)} with current figures` }
}

/** The loss in closed windows, as in the charts below; stalled jobs are listed apart. */
function today({ gpu_hours_lost_today, gpu_hours_today, gpu_hours_stalled_today, by_state }, money) {
  const label = "Lost today"
  const stalled =
    gpu_hours_stalled_today > 0 &&
    `without ${gpuHours(gpu_hours_stalled_today)} GPU-h of ${stalledJobs(by_state.stalled)}`
  if (!gpu_hours_today) return { label, note: ["no window closed today", stalled].filter(Boolean).join(", ") }
  const price = money(gpu_hours_lost_today)
  const share = `${percentNumber(gpu_hours_lost_today / gpu_hours_today)} % of GPU-hours used`
  return {
    label,
    figure: gpuHours(gpu_hours_lost_today),
    unit: "GPU-h",
    note: [share, price && `about ${price}`, stalled].filter(Boolean).join(", "),
  }
}

const stalledJobs = (number) => `${whole(number)} stalled ${number === 1 ? "job" : "jobs"}`

function now({ lost_per_hour, lost_per_hour_stalled, gpus, gpus_measured, by_state }, money) {
  const label = "Being lost now"
  if (!gpus_measured && !by_state.stalled) return { label, note: "no current figures" }
  const price = money(24 * lost_per_hour)
  const share = `${percentNumber(lost_per_hour / gpus)} % of GPUs watched`
  return {
    label,
    figure: roughHours(lost_per_hour),
    unit: "GPU-h per hour",
    note: [
      share,
      price && `about ${price} a day`,
      lost_per_hour_stalled > 0 && `${gpuHours(lost_per_hour_stalled)} of it by ${stalledJobs(by_state.stalled)}`,
    ]
      .filter(Boolean)
      .join(", "),
  }
}

function alerts({ alerts_firing, alerts_new_last_hour }) {
  const note = alerts_new_last_hour
    ? `${whole(alerts_new_last_hour)} new in the last hour`
    : "none new in the last hour"
  return { label: "Alerts firing", figure: whole(alerts_firing), note }
}
