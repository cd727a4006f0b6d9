/** Where the runbook says what to do about a cause or an alert. */

import { causeOf } from "../lib/causes.js"

const RUNBOOK = "/docs/on-call"

// Headings of docs/on-call.md about what rules evaluate, beside those about causes.
const SECTIONS = new Set(["stalled", "crashed", "low-fidelity"])

/** The section of the runbook about a cause, or about what a rule evaluates. */
export function runbookOf(cause) {
  return causeOf(cause) || SECTIONS.has(cause) ? `${RUNBOOK}#${cause}` : `${RUNBOOK}#first-in-this-order`
}

/** The runbook of an alert: that of its rule, else the section about its cause. */
export const runbookOfAlert = ({ runbook_url, blame, on }) => runbook_url ?? runbookOf(blame?.cause ?? on)
