/** The card of the operation that the reader has chosen in a timeline. */

import { h } from "../dom.js"
import { contained, NOT_MEASURED, ratio, seconds, whole } from "../words.js"
import { hostHref, workerHref, workerName } from "./culprits.js"

const NAMES = { "forward-compute": "forward", "backward-compute": "backward" }
const MICROSECOND = 1e-6

/** The card; `found` is the API's operation, null while none is chosen. */
export function operationCard(found, { base, window, error }) {
  return h(
    "section",
    { class: "card operation", "data-key": "operation", "aria-label": "Selected operation" },
    h("header", {}, h("h2", {}, "Selected operation")),
    found ? h("dl", { class: "facts" }, rows(found, base, window).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : h("p", { class: "quiet" }, error ?? "Click on a bar, or move with the arrow keys."),
  )
}

/** An operation in words: "forward, micro-batch 3". */
export function operationName({ optype, microbatch }) {
  const name = NAMES[optype] ?? optype
  return microbatch === null ? name : `${name}, micro-batch ${whole(microbatch)}`
}

function rows(found, base, window) {
  const { after, peers_s, own_s } = found
  return [
    ["Operation", `${operationName(found)}${found.run === "ideal" ? ", ideal" : ""}`],
    ["Worker", h("a", { href: workerHref({ base, window }, found) }, workerName(found))],
    found.host && ["Host", h("a", { href: hostHref(found.host) }, contained(found.host))],
    ["Start", `${found.start_s.toFixed(3)} s`],
    ["Duration", time(found.duration_s)],
    Math.abs(found.waited_s) >= MICROSECOND && ["of it waiting for peers", time(found.waited_s)],
    Math.abs(found.waited_s) >= MICROSECOND && ["of it moving data", time(own_s)],
    ["Ideal", time(found.ideal_s)],
    ["Against its peers", peers_s === null ? "no other worker has one" : peers_s > 0 ? ratio(own_s / peers_s) : NOT_MEASURED],
    ["Waited for", after ? `${operationName(after)}${after.stage === found.stage ? "" : `, stage ${whole(after.stage)}`}` : "nothing: it is a first one"],
    ["Launch delay", time(found.delay_s)],
    found.run === "recorded" && ["On the critical path", found.is_critical ? "yes" : "no"],
  ].filter(Boolean)
}

/** A duration; below a microsecond it is nothing, and clocks that disagree make it negative. */
function time(value_s) {
  if (Math.abs(value_s) < MICROSECOND) return "0 ms"
  return value_s < 0 ? `\u2212${seconds(-value_s)}` : seconds(value_s)
}
