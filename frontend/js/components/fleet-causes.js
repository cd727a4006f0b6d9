/** What a line of the fleet says of a job's causes and culprits, in few words. */

import { h } from "../dom.js"
import { NOT_MEASURED, causeName, contained, counted, percentNumber, ratio, tidy, whole } from "../words.js"
import { silenceInShort } from "./silence.js"

const CHIPS = 2

/** The chips of a job, the leading cause first; words where there are none. */
export function causes(job) {
  const words = instead(job)
  if (words) return h("span", { class: "causes at-desk quiet" }, words)
  const silence = silenceInShort(job)
  if (silence) return h("span", { class: "causes at-desk" }, chip(silence[0], job.state === "stalled"))
  const chips = job.causes.slice(0, CHIPS).map((each, at) => chip(shortCause(each.cause, job), at === 0 && job.state === "straggling"))
  const more = job.num_causes - CHIPS
  return h("span", { class: "causes at-desk" }, chips, more > 0 && h("span", { class: "quiet" }, `+${more}`))
}

/** The leading cause as plain words, for the narrow card; empty where there is none. */
export function leadingCause(job) {
  if (instead(job)) return ""
  const silence = silenceInShort(job)
  if (silence) return silence[0]
  return job.causes.length ? shortCause(job.causes[0].cause, job) : ""
}

/** Who is to blame, in two lines. */
export function culprit(job) {
  const [text, more, isQuiet] = culpritWords(job)
  return h("span", { class: isQuiet ? "culprit at-desk quiet" : "culprit at-desk" }, text, more && h("small", {}, tidy(more)))
}

function chip(text, isLeading) {
  return h("span", { class: isLeading ? "chip is-leading" : "chip" }, text)
}

function shortCause(cause, job) {
  // The culprits of a line are those of its first cause.
  const isAboutIt = job.causes[0].cause === cause && job.num_culprits === 1
  const { pp_size } = job.parallelism
  return lower(causeName(cause, isAboutIt && pp_size > 1 && job.culprits[0].stage === pp_size - 1))
}

/** As it stands within a line. */
const lower = (name) => name.charAt(0).toLowerCase() + name.slice(1)

function instead(job) {
  if (job.state === "not-analysed") return "not yet"
  if (silenceInShort(job) || job.causes.length) return null
  if (job.is_diagnosed) return "none found"
  return job.verdict === "low" ? "withheld" : NOT_MEASURED
}

function culpritWords(job) {
  const silence = silenceInShort(job)
  if (silence) return [silence[1], lastKnown(job)]
  if (job.state === "not-analysed") return [job.not_analysed ?? "no figures yet", ""]
  if (job.causes.length) return blamed(job)
  if (job.is_diagnosed) return ["none", "", true]
  if (job.verdict === "low") return [offBy(job), "figures withheld"]
  return [NOT_MEASURED, job.not_analysed ?? "", true]
}

const offBy = ({ discrepancy }) => (Number.isFinite(discrepancy) ? `simulated ${percentNumber(discrepancy)} % off` : "simulated too far off")

const lastKnown = ({ slowdown }) => (slowdown === null ? "" : `last known ${ratio(slowdown)}`)

function blamed({ causes, culprits, num_culprits }) {
  if (!culprits.length) return NOBODY[causes[0].cause] ?? ["no single worker", ""]
  const [{ dp_rank, stage, host, rank, local_rank }] = culprits
  const others = num_culprits > 1 ? `and ${whole(num_culprits - 1)} more` : ""
  const place = [dp_rank !== null && `dp ${dp_rank}`, stage !== null && `stage ${stage}`].filter(Boolean).join(", ")
  const gpu = local_rank !== null && `GPU ${whole(local_rank)}`
  const name = place || (rank !== null && `rank ${whole(rank)}`)
  const machine = [host && contained(host), gpu].filter(Boolean).join(", ")
  if (!name) return [machine || "no single worker", others]
  return [name, [machine, others].filter(Boolean).join(" ")]
}

const NOBODY = {
  "sequence-imbalance": ["moves every step", "no single host"],
  "gc-pause": ["different workers", ""],
  "uniform-slowdown": ["all workers", ""],
}

/** How many causes a filter offers, with their words: `[cause, "slow worker (3)"]`. */
export function causeChoices(byCause) {
  return Object.entries(byCause).map(([cause, number]) => [cause, `${lower(causeName(cause))} (${counted(number, "job")})`])
}
