/** How the fleet's amounts are written. */

import { whole } from "../words.js"

/** A number of GPU-hours as roughly as it is known: 4.2, 11,920. */
export const gpuHours = (value) => (value < 10 ? value.toFixed(1) : whole(value))
