/** Where links in notifications point while the operator has set no public address. */

import { noteBar } from "../../components/notices.js"
import { contained } from "../../lib/formatting.js"

const REACH = {
  loopback: "which only this machine reaches",
  host: "where the server listens",
}

/** The bar; null where the operator has set the address. `settings` are those of GET /settings. */
export function linksNote({ pages_url, pages_url_reach }) {
  const reach = REACH[pages_url_reach]
  if (!reach) return null
  return noteBar({
    fact: `Links in notifications point to ${contained(pages_url)}, ${reach}.`,
    consequence: "Set PACELINE_PUBLIC_URL.",
  })
}
