/** What the session tells: what a GPU-hour costs, and what the reader's token may do. */

import { contained, whole } from "./formatting.js"

let price = null
let scopes = []

/** Take price and scopes from the session; until then `money` gives "" and nothing may be changed. */
export function takeSession(session) {
  price = session.price ?? null
  scopes = session.scopes ?? []
}

/** The cost of so many GPU-hours, as in "$2,143"; "" where no price is set or the hours are not known. */
export function money(gpuHours) {
  if (!price || gpuHours === null || gpuHours === undefined) return ""
  const amount = gpuHours * price.per_gpu_hour
  return `${contained(price.currency)}${Math.abs(amount) < 10 ? amount.toFixed(2) : whole(amount)}`
}

/** Whether the reader may do what takes this scope: "write" or "admin". */
export const may = (scope) => scopes.includes(scope)
