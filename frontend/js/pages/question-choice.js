/** Which question the address asks, and of which window. */

import { getJson } from "../api.js"
import { draftOf, editOf } from "../components/edit-draft.js"

const KINDS = new Set(["ideal", "factor", "add", "set", "from-worker"])

/**
 * What to show at first: `{window, edits, shown, firstSteps}`.
 *
 * `edits` are null where the address has none, `shown` is the saved question that it names, and
 * `firstSteps` are the steps that the reader has come from. The newest closed window is asked
 * where none is named; of several the last one.
 */
export async function askedAtFirst(base, windows, { window, steps, edits, saved }) {
  const newest = windows[0]?.window_id ?? null
  if (saved) {
    const shown = await getJson(`${base}/what-ifs/${encodeURIComponent(saved)}`)
    return { shown, window: shown.window, edits: editsIn(JSON.stringify(shown.edits)), firstSteps: null }
  }
  const named = window && window !== "latest" ? window.split("..").at(-1) : newest
  return { shown: null, window: named, edits: edits === null ? null : editsIn(edits), firstSteps: steps }
}

/** The edits of a text as this page writes them; what is none is left out. */
export function editsIn(text) {
  try {
    const given = JSON.parse(text)
    return Array.isArray(given) ? given.map(editIn).filter(Boolean) : []
  } catch {
    return []
  }
}

/** A question as this page writes it, as text: equal for equal questions. */
export const canonical = (edits) => JSON.stringify(editsIn(JSON.stringify(edits)))

/** An edit by way of a draft, so that lists come in one order and fields that select all are out. */
function editIn(given) {
  try {
    return KINDS.has(given.change.kind) ? editOf(draftOf(given)).edit : null
  } catch {
    return null
  }
}
