/** What may stand in the text of the rules. */

import { h } from "../dom.js"

const KEYS = [
  ["name", "its name, in small letters, digits and hyphens; alerts keep their identity by it"],
  ["on", "slowdown, waste, gpu-hours-lost, cause, worker, host, optype, stalled, silent-worker, low-fidelity, clock-residual or step-time"],
  ["jobs, of", "patterns with * and ?: which jobs, and which causes, workers, hosts or operation types; all where left out"],
  ["above, clear", "it begins to hold at the one or more, and ceases to below the other: 1.10 for slowdowns, 0.1 for 10 %"],
  ["for", "{windows: 3, seconds: 30}: it fires after so many complete windows in a row which took so long"],
  ["keep_firing", "seconds that it stays firing after it has ceased to hold"],
  ["min_confidence", "how sure a cause has to be, from 0 to 1"],
  ["severity", "info, warning or critical"],
  ["labels, runbook", "what its alerts carry: {team: pretraining}, and a link to what to do"],
  ["inhibits", "names of rules that tell nobody about the same job while this one fires"],
  ["cordon", "name of a hook of the service that may act; none acts unless the service was told to"],
]

/** The keys with their meanings, folded up. */
export function ruleKeys() {
  return h(
    "details",
    { class: "keys", "data-key": "keys" },
    h("summary", {}, "What the keys mean"),
    h("dl", {}, KEYS.map(([key, meaning]) => [h("dt", {}, h("code", {}, key)), h("dd", {}, meaning)])),
  )
}
