/** What the shown figures are made of: windows, steps, and what was left out. */

import { h } from "../dom.js"
import { NOT_MEASURED, contained, counted, ratio, stepRange, whole } from "../words.js"

const MAX_LISTED = 8

/** The card; `result` is the windows' object, `ribbon` the job's; `silent` says who is silent now. */
export function measuredCard(result, ribbon, silent = null) {
  const { window, steps, skipped_steps, launch_slowdown } = result
  const rows = [
    window.windows ? ["Windows", `${counted(window.windows.length, "window")}, ${window.windows[0]} to ${window.windows.at(-1)}`] : ["Window", `${window.id}, revision ${window.revision}`],
    ["State", window.state],
    ["Steps", steps.length ? `${whole(steps[0])}${steps.length > 1 ? ` to ${whole(steps.at(-1))}` : ""}, ${whole(steps.length)} recorded` : "none yet"],
    ["Skipped", skipped(skipped_steps)],
    window.num_left_out > 0 && ["Windows left out", `${whole(window.num_left_out)}, to keep the answer small`],
    result.more_findings > 0 && ["Causes left out", `${whole(result.more_findings)}, each costs less than those told`],
    ["Ranks missing", missing(window.missing ?? [], silent)],
    ["Recorded against simulated step", launch_slowdown ? ratio(launch_slowdown) : NOT_MEASURED],
    ribbon.older > 0 && ["Older windows", `${whole(ribbon.older)}, not on the ribbon`],
  ]
  return h(
    "section",
    { class: "card", "data-key": "measured", "aria-label": "What was measured" },
    h("header", {}, h("h2", {}, "What was measured")),
    h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  )
}

/** Of the window, and of now. */
function missing(ranks, silent) {
  if (!silent) return some(ranks.map(String))
  return ranks.length ? `${some(ranks.map(String))}; now ${silent}` : `${silent}, after this window`
}

/** Steps that were never analysed, and why: successive ones with the same reason as one. */
function skipped(steps) {
  const stretches = []
  for (const { step, reason } of steps) {
    const before = stretches.at(-1)
    if (before && before.reason === reason && before.last === step - 1) before.last = step
    else stretches.push({ first: step, last: step, reason })
  }
  return some(stretches.map(({ first, last, reason }) => `${stepRange(first, last)}: ${contained(reason)}`), "; ")
}

function some(texts, between = ", ") {
  if (!texts.length) return "none"
  const more = texts.length - MAX_LISTED
  return texts.slice(0, MAX_LISTED).join(between) + (more > 0 ? ` and ${whole(more)} more` : "")
}
