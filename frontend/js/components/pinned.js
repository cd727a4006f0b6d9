/** What is pinned: a bar at the bottom of the window, which moves nothing else. */

import { h } from "../dom.js"
import { NOT_MEASURED, contained, ratio, whole } from "../words.js"
import { hostHref, workerHref, workerName } from "./culprits.js"

/**
 * The bar, or null where nothing is pinned.
 *
 * `worker` is what is known of the pinned worker: `{slowdown, host}`, or null before it is known.
 */
export function pinnedBar({ pinned, worker, base, window, onFree }) {
  const { dp, stage, step } = pinned
  const hasWorker = isKnown(dp) && isKnown(stage)
  if (!hasWorker && !isKnown(step)) return null
  const who = { dp_rank: dp, stage }
  return h(
    "aside",
    { class: "pinned", "aria-label": "Pinned", "data-key": "pinned" },
    h("b", {}, [hasWorker && workerName(who), isKnown(step) && `step ${whole(step)}`].filter(Boolean).join(", ")),
    hasWorker && worker && told(worker),
    h(
      "span",
      { class: "acts" },
      hasWorker && h("a", { href: workerHref({ base, window }, who) }, "Open worker"),
      h("a", { href: timeline({ base, window, dp, step }) }, "Timeline"),
      h("button", { class: "text-button", type: "button", onclick: onFree }, "Free (Esc)"),
    ),
  )
}

function told({ slowdown, host }) {
  return h(
    "span",
    { class: "told" },
    host && ["on ", h("a", { href: hostHref(host) }, contained(host)), ", "],
    isKnown(slowdown) ? `alone it slows the job to ${ratio(slowdown)}` : NOT_MEASURED,
  )
}

function timeline({ base, window, dp, step }) {
  const known = Object.entries({ window: window === "latest" ? null : window, step, dp }).filter(([, value]) => isKnown(value))
  const query = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString()
  return `${base}/timeline${query && `?${query}`}`
}

const isKnown = (value) => value !== null && value !== undefined
