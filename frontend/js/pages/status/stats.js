/** The figures at the top of the status page: when the service last worked, and how much room it has. */

import { ago, counted, duration, percentNumber, seconds, whole } from "../../lib/formatting.js"

const UNITS = [
  ["TB", 1e12],
  ["GB", 1e9],
  ["MB", 1e6],
  ["kB", 1e3],
]

/** Cells of the strip. */
export function statsOf({ canary, consumers, queue, disk, heartbeats }) {
  return [canaryStat(canary), consumersStat(consumers), queueStat(queue), heartbeatsStat(heartbeats), diskStat(disk)]
}

/** Bytes in the largest unit that fits. */
export function bytes(number) {
  const [unit, size] = UNITS.find(([, each]) => number >= each) ?? ["bytes", 1]
  return `${Number((number / size).toPrecision(3))} ${unit}`
}

function canaryStat(canary) {
  const label = "Canary last found"
  if (canary === null) return { label, figure: null }
  if (canary.state === "off") return { label, figure: "Off", note: "PACELINE_CANARY_EVERY_S is 0" }
  const every = `every ${duration(canary.every_s)}`
  if (canary.found_at === null) return { label, figure: "Not yet", note: `a round ${every}` }
  return {
    label,
    figure: ago(new Date(Date.now() - 1000 * canary.age_s)),
    note: canary.state === "missing" ? "the last round missed it" : `in ${seconds(canary.took_s)}, ${every}`,
    noteMark: canary.state === "missing" ? "warning" : "healthy",
  }
}

function consumersStat(consumers) {
  const label = "Consumers alive"
  if (consumers === null) return { label, figure: null }
  const alive = consumers.items.filter(({ is_alive }) => is_alive).length
  const note = consumers.last_turn_at ? `last turn ${ago(new Date(consumers.last_turn_at))}` : "no turn yet"
  return { label, figure: whole(alive), note, noteMark: alive ? "healthy" : "stalled" }
}

function queueStat(queue) {
  const label = "Batches in the queue"
  if (queue === null) return { label, figure: null }
  const oldest = queue.oldest_s === null ? "none waits" : `the oldest for ${duration(Math.round(queue.oldest_s))}`
  return { label, figure: whole(queue.entries), note: oldest }
}

function heartbeatsStat(heartbeats) {
  const label = "Dead-man's switches"
  if (heartbeats === null) return { label, figure: null }
  if (!heartbeats.length) return { label, figure: "None", note: "nobody notices if all of this stops" }
  const failing = heartbeats.filter(({ state }) => state !== "ok" && state !== "untried").length
  return {
    label,
    figure: whole(heartbeats.length),
    note: failing ? `${whole(failing)} not delivered` : "heartbeats are delivered",
    noteMark: failing ? "warning" : "healthy",
  }
}

function diskStat(disk) {
  const label = "Disk"
  if (disk === null) return { label, figure: null, note: "the database is on another machine" }
  const inside = disk.reusable_bytes ? `, ${bytes(disk.reusable_bytes)} free inside the database` : ""
  const used = `${percentNumber(disk.used_share, 0)} % used${inside}`
  if (disk.days_left === null) return { label, figure: bytes(disk.free_bytes), unit: "free", note: used }
  const note = `at this pace; ${bytes(disk.free_bytes)} free, ${used}`
  return { label, figure: counted(Math.floor(disk.days_left), "day"), unit: "left", note }
}
