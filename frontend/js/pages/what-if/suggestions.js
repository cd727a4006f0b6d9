/** Questions that a window's findings suggest, and those that every window has. */

import { culpritWords, keysOf } from "../../components/culprits.js"
import { causeOf } from "../../lib/causes.js"
import { h } from "../../lib/dom.js"
import { roundedPercent, tidy } from "../../lib/formatting.js"

const COMPUTE = ["forward-compute", "backward-compute"]
// One change per slow worker; longer questions are not readable.
const MAX_CHANGES = 8

// Edits by `asks` of a cause's row (app/result/causes.py), which has the title, too, unless it is here.
const EDITS = {
  "as-peers": asFastAsPeers,
  stages: stagesAsFast,
  links: linksAsFast,
  ideal: ({ steps }) => ({ edits: [ideal(COMPUTE, { steps })] }),
  "ideal-of-workers": ({ optypes, workers, num_workers, steps }) => ({
    edits: [ideal(optypes, { workers: workers.length < num_workers ? [] : workers, steps })],
  }),
  "as-before": ({ optypes, ratio, steps }) => ({ edits: [edit({ op_types: optypes, steps }, slower(ratio))] }),
}

/**
 * Questions about a window's result: `{key, title, note, edits}`, the findings' own first.
 *
 * A title also reads well after "with".
 */
export function suggestions(result) {
  const found = ofFindings(result.findings ?? [], result)
  const pp = result.job.pp_size
  const last = pp > 1 && !found.some(({ cause }) => cause === "stage-imbalance")
  return [
    ...found,
    last && {
      key: "last",
      title: "The last stage computing at its ideal",
      note: "the stage that also computes the loss",
      edits: [ideal(COMPUTE, { stages: [pp - 1] })],
    },
    {
      key: "transfers",
      title: "Transfers taking no time",
      note: "what a better network could win at most",
      edits: [edit({ op_types: ["comm"] }, { kind: "set", value: 0 })],
    },
    {
      key: "all",
      title: "Every operation at its ideal",
      note: "no stragglers at all",
      edits: [{ change: { kind: "ideal" } }],
    },
  ].filter(Boolean)
}

/** The card; `asked` is the question as JSON text, `onPick(suggestion)`. */
export function suggestedCard(all, asked, onPick) {
  const row = (suggestion) =>
    h(
      "li",
      { "data-key": suggestion.key },
      h(
        "button",
        {
          class: "ask",
          type: "button",
          "aria-pressed": String(JSON.stringify(suggestion.edits) === asked),
          onclick: () => onPick(suggestion),
        },
        h("b", {}, suggestion.title),
        suggestion.note && h("small", {}, tidy(suggestion.note)),
      ),
    )
  return h(
    "section",
    { class: "card suggested", "data-key": "suggested", "aria-label": "Suggested questions" },
    h("header", {}, h("h2", {}, "Suggested"), h("span", { class: "explanation" }, "from what was found")),
    h("ol", {}, all.map(row)),
  )
}

function ofFindings(findings, result) {
  const keys = keysOf(findings)
  return findings.map((finding, at) => ofFinding(finding, result, keys[at])).filter(Boolean)
}

function ofFinding({ cause, culprits, cost, evidence }, { steps }, key) {
  const row = causeOf(cause)
  const asked = EDITS[row?.asks]?.({ ...evidence, culprits, steps: some(evidence.steps, steps) })
  if (!asked?.edits.length) return null
  const note = cost === null ? "" : `costs ${roundedPercent(cost)} % of the GPU time`
  return { key, cause, note, title: row.question, ...asked }
}

/** The steps that a change is about; none, which means all, where it is about all of the window's. */
function some(wanted, steps) {
  const inWindow = (wanted ?? []).filter((step) => steps.includes(step))
  return inWindow.length === steps.length ? [] : inWindow
}

function asFastAsPeers({ culprits, workers, num_workers, steps, optypes, ...evidence }) {
  const slowdowns = evidence.slowdowns_against_peers ?? evidence.slowdowns_against_itself ?? []
  const than = evidence.slowdowns_against_peers ? "its peers" : "before"
  const title =
    num_workers > 1
      ? `${num_workers} workers as fast as ${than === "before" ? than : "their peers"}`
      : `${culpritWords(culprits.map(({ dp_rank, stage }) => ({ dp_rank, stage })))} as fast as ${than}`
  if (workers.length < num_workers || workers.length > MAX_CHANGES)
    return { title, edits: [ideal(optypes, { workers, steps })] }
  return {
    title,
    edits: workers.map((worker, at) => edit({ op_types: optypes, workers: [worker], steps }, slower(slowdowns[at]))),
  }
}

function stagesAsFast({ stages, optypes, steps, slowdown_against_stages }) {
  if (stages.length > 1)
    return { title: `Stages ${stages.join(", ")} at their ideal`, edits: [ideal(optypes, { stages, steps })] }
  return {
    title: `Stage ${stages[0]} as fast as the others`,
    edits: [edit({ op_types: optypes, stages, steps }, slower(slowdown_against_stages))],
  }
}

function linksAsFast({ culprits, optypes, workers, steps }) {
  const where = culpritWords(culprits)
  return { title: `Links${where && ` of ${where}`} as fast as the others`, edits: [ideal(optypes, { workers, steps })] }
}

const slower = (times) => ({ kind: "factor", value: Number((1 / times).toPrecision(4)) })
const ideal = (optypes, select) => edit({ op_types: optypes, ...select }, { kind: "ideal" })

/** Lists that select nothing in particular are left out, as an edit that was typed leaves them. */
function edit(select, change) {
  const chosen = Object.entries(select).filter(([, values]) => values?.length)
  return chosen.length ? { select: Object.fromEntries(chosen), change } : { change }
}
