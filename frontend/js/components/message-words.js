/** How one message to a receiver went, in words, with the mark of it. */

import { clock, contained, counted } from "../words.js"
import { receiverName } from "./receiver-words.js"

const MARKS = { delivered: "healthy", due: "silent", failed: "stalled", outdated: "not-analysed", silenced: "not-analysed" }
const KINDS = { firing: "began to fire", resolved: "resolved", acknowledged: "acknowledged", refresh: "still firing", test: "a test", "notifier-unhealthy": "another receiver cannot be told" }

/** The mark of a message. */
export const messageMark = ({ state }) => MARKS[state] ?? "not-analysed"

/** What became of it: "told", "not told yet, 2 attempts". */
export function messageWords({ state, attempt }) {
  if (state === "delivered") return "told"
  if (state === "failed") return attempt ? `not told, gave up after ${counted(attempt, "attempt")}` : "not told"
  if (state === "outdated") return "left out, newer news followed"
  if (state === "silenced") return "left out, silenced before it was sent"
  return attempt ? `not told yet, ${counted(attempt, "attempt")}` : "being sent"
}

/** What it is about. */
export const messageKind = ({ kind }) => KINDS[kind] ?? contained(kind)

/** What an attempt met; most details say the status themselves. Of the operator's receiver others learn neither. */
export function attemptWords({ status, detail }) {
  const words = detail ?? (status ? "" : "what came of it only the operator knows")
  return contained(status && !words.includes(String(status)) ? `${status} ${words}`.trim() : words)
}

/** Whom it is for; one that is deleted is known by its id alone. */
export const receiverOf = ({ endpoint_id, endpoint_name }) => receiverName({ endpoint_id, name: endpoint_name ?? endpoint_id })

/** Whether receivers know of an alert, by the messages about its rule and job; `{mark, text}` or null. */
export function toldOf(deliveries) {
  return ({ job_id, rule, phase, began_at }) => {
    if (phase !== "firing") return null
    const about = deliveries.filter((each) => each.job_id === job_id && each.rule === rule && each.kind === "firing" && each.created_at >= began_at)
    // The newest of each receiver, as the list has them.
    const latest = [...new Map(about.toReversed().map((each) => [each.endpoint_id, each])).values()]
    const named = (state) => latest.filter((each) => each.state === state).map(receiverOf).join(", ")
    const [failed, due, told] = ["failed", "due", "delivered"].map(named)
    const parts = [failed && `not told: ${failed}`, due && `being told: ${due}`, told && `told: ${told}${toldAt(latest)}`].filter(Boolean)
    if (!parts.length) return null
    const text = parts.join("; ")
    return { mark: failed ? "warning" : due ? "silent" : "healthy", text: `${text.charAt(0).toUpperCase()}${text.slice(1)}.` }
  }
}

function toldAt(latest) {
  const times = latest.filter(({ state, done_at }) => state === "delivered" && done_at).map(({ done_at }) => done_at)
  return times.length ? ` at ${clock(new Date(times.sort().at(-1)))}` : ""
}
