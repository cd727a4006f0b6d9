/** What GPU-hours cost, where the operator has said what one does. */

import { contained, whole } from "./words.js"

let price = null

/** Take what a GPU costs an hour from the session; `money` gives "" until then. */
export function takePrice(session) {
  price = session.price ?? null
}

/** The cost of so many GPU-hours, as in "$2,143"; "" where no price is set or the hours are not known. */
export function money(gpuHours) {
  if (!price || gpuHours === null || gpuHours === undefined) return ""
  const amount = gpuHours * price.per_gpu_hour
  return `${contained(price.currency)}${Math.abs(amount) < 10 ? amount.toFixed(2) : whole(amount)}`
}
