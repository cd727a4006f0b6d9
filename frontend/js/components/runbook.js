/** Where the runbook says what to do about a cause or an alert. */

const RUNBOOK = "/docs/on-call"

// Headings of docs/on-call.md that are causes or what rules evaluate.
const SECTIONS = new Set([
  "slow-worker",
  "late-host",
  "stage-imbalance",
  "sequence-imbalance",
  "gc-pause",
  "slow-link",
  "flapping-link",
  "data-loading",
  "allocator-stall",
  "cpu-contention",
  "checkpoint-stall",
  "job-stop",
  "expert-imbalance",
  "uniform-slowdown",
  "silent-worker",
  "stalled",
  "crashed",
  "low-fidelity",
])

/** The section of the runbook about a cause, or about what a rule evaluates. */
export function runbookOf(cause) {
  return SECTIONS.has(cause) ? `${RUNBOOK}#${cause}` : `${RUNBOOK}#first-in-this-order`
}

/** The runbook of an alert: that of its rule, else the section about its cause. */
export const runbookOfAlert = ({ runbook_url, blame, on }) => runbook_url ?? runbookOf(blame?.cause ?? on)
