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

/** As `gpu` in app/formatting.py: "rank 11 (dp 3, stage 1) on host-043, GPU 5". */
export function place({ rank, dp_rank, stage, host, local_rank }) {
  const worker = [isKnown(dp_rank) && `dp ${whole(dp_rank)}`, isKnown(stage) && `stage ${whole(stage)}`]
    .filter(Boolean)
    .join(", ")
  const who = isKnown(rank) ? `rank ${whole(rank)}${worker && ` (${worker})`}` : worker
  const name = host && contained(host)
  const where = who && name ? `${who} on ${name}` : who || name || ""
  return isKnown(local_rank) ? `${where}, GPU ${whole(local_rank)}` : where
}
