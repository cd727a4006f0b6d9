/** What is said of each cause: the server's own table (app/result/causes.py), which the page carries. */

import { contained } from "./formatting.js"

// A page that was opened before an upgrade has no table: its causes are shown by their names.
const ROWS = JSON.parse(document.getElementById("causes")?.textContent ?? "{}")

const titled = (text) => text.charAt(0).toUpperCase() + text.slice(1)

/** The row of a cause; undefined of one that this release does not know. */
export const causeOf = (cause) => (Object.hasOwn(ROWS, cause) ? ROWS[cause] : undefined)

/** A cause in words; `isLastStage` where the last stage alone is the long one. */
export function causeName(cause, isLastStage = false) {
  if (cause === "stage-imbalance" && isLastStage) return "Long last stage"
  const row = causeOf(cause)
  return row ? titled(row.label) : contained(cause)
}
