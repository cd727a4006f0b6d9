/** Culprits in words, and links to workers and hosts. */

import { h } from "../lib/dom.js"
import { contained, isKnown, whole } from "../lib/formatting.js"

const MAX_CULPRITS = 3

/** The culprits in a few words; empty where there are none. */
export function culpritWords(culprits) {
  const named = culprits.slice(0, MAX_CULPRITS).map(place)
  const more = culprits.length - named.length
  return [...named, more > 0 && `${whole(more)} more`].filter(Boolean).join(" \u00b7 ")
}

/** Links to the culprits' workers and hosts; `page` has the job's base address and its window. */
export function culpritLinks(culprits, page) {
  const shown = culprits.slice(0, MAX_CULPRITS)
  const workers = shown
    .filter(isWorker)
    .map((culprit) => h("a", { href: workerHref(page, culprit) }, workerName(culprit)))
  const hosts = [...new Set(shown.map(({ host }) => host).filter(Boolean))].map((host) =>
    h("a", { href: hostHref(host) }, contained(host)),
  )
  return [...workers, ...hosts]
}

/** The address of a worker's page. */
export function workerHref({ base, window }, { dp_rank, stage }) {
  const query = window && window !== "recent" ? `?window=${encodeURIComponent(window)}` : ""
  return `${base}/workers/${dp_rank}-${stage}${query}`
}

/** The address of a host's page. */
export const hostHref = (host) => `/hosts/${encodeURIComponent(host)}`

/** A worker's name: "dp 3, stage 1". */
export const workerName = ({ dp_rank, stage }) => `dp ${whole(dp_rank)}, stage ${whole(stage)}`

const isWorker = ({ dp_rank, stage }) => isKnown(dp_rank) && isKnown(stage)

/** As `culprit_name` in app/formatting.py: "host-043, rank 11 (dp 3, stage 1)", "host-017 (all 8 of its workers)". */
export function place(culprit) {
  const { rank, host, local_rank, num_workers } = culprit
  const worker = placeOf(culprit)
  const ranks = rankWords(culprit)
  const who = ranks && worker ? `${ranks} (${worker})` : ranks || worker
  const hit = host && isKnown(num_workers) && `all ${whole(num_workers)} of its workers`
  const inBrackets = hit ? [who, hit].filter(Boolean).join(", ") : !ranks && worker
  return [
    host && (inBrackets ? `${contained(host)} (${inBrackets})` : contained(host)),
    (!host || (ranks && !hit)) && who,
    !host && isKnown(rank) && "host not reported",
    isKnown(local_rank) && `GPU ${whole(local_rank)}`,
  ]
    .filter(Boolean)
    .join(", ")
}

/** A culprit's dp rank and stage, as far as it has them: "dp 3, stage 1". */
export const placeOf = ({ dp_rank, stage }) =>
  [isKnown(dp_rank) && `dp ${whole(dp_rank)}`, isKnown(stage) && `stage ${whole(stage)}`].filter(Boolean).join(", ")

const MAX_RUNS = 4

/** A culprit's global ranks: "rank 11", "ranks 88 to 95"; "" where unknown. */
export function rankWords({ rank, ranks }) {
  const numbers = ranks?.length ? ranks : isKnown(rank) ? [rank] : []
  if (numbers.length < 2) return numbers.length ? `rank ${whole(numbers[0])}` : ""
  const runs = runsOf(numbers)
  if (runs.length === 1) return `ranks ${runText(runs[0])}`
  const texts = runs.length > MAX_RUNS ? numbers.slice(0, MAX_RUNS - 1).map(whole) : runs.map(runText)
  if (runs.length > MAX_RUNS) texts.push(`${whole(numbers.length - MAX_RUNS + 1)} more`)
  return `ranks ${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`
}

/** Successive numbers together, where there are at least three of them. */
function runsOf(numbers) {
  const found = []
  for (const number of numbers) {
    if (found.length && number === found.at(-1).at(-1) + 1) found.at(-1).push(number)
    else found.push([number])
  }
  return found.flatMap((run) => (run.length > 2 ? [run] : run.map((number) => [number])))
}

const runText = (run) => (run.length > 1 ? `${whole(run[0])} to ${whole(run.at(-1))}` : whole(run[0]))

/** A key for each finding: its cause and place and, where these come again, its number. */
export function keysOf(findings) {
  const numbers = new Map()
  return findings.map(({ cause, culprits }) => {
    const key = `${cause} ${culpritWords(culprits)}`
    const number = (numbers.get(key) ?? 0) + 1
    numbers.set(key, number)
    return number > 1 ? `${key} ${number}` : key
  })
}
