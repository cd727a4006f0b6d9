/** Edits in words, and as commands for a terminal. */

import { copyButton, segments } from "../../components/buttons.js"
import { h } from "../../lib/dom.js"
import { contained, counted, seconds, whole } from "../../lib/formatting.js"
import { listText, ranges } from "./edits.js"

const TIMES = "\u00d7"
const MAX_NAMED = 3

const GROUPS = {
  compute: "compute",
  "pp-comm": "pipeline transfers",
  "dp-comm": "data-parallel transfers",
  comm: "all transfers",
}
const NAMES = {
  "forward-compute": "forward compute",
  "backward-compute": "backward compute",
  gc: "garbage collection",
  "forward-pp-comm": "pipeline forward transfers",
  "backward-pp-comm": "pipeline backward transfers",
  "params-all-gather": "parameter gathers",
  "grads-reduce-scatter": "gradient reduces",
  "separate-grads-all-reduce": "separate gradient reduces",
  "layernorm-grads-all-reduce": "layer-norm gradient reduces",
  "embedding-grads-all-reduce": "embedding gradient reduces",
  "optimizer-clip-main-grad": "gradient clipping",
}

/** Names that stand for several operation types, in the order in which they are offered. */
export const OP_GROUPS = Object.keys(GROUPS)

/** An operation type, or a group of them, in words. */
export const opWords = (name) => GROUPS[name] ?? NAMES[name] ?? contained(name.replaceAll("-", " "))

/** Which operation types: "every operation", "forward and backward compute". */
export function opsWords(names) {
  if (!names?.length) return "every operation"
  const both = ["forward-compute", "backward-compute"]
  if (names.length === 2 && both.every((name) => names.includes(name))) return "forward and backward compute"
  return named(names.map(opWords), "operation type")
}

/** The conditions of a question: "forward compute on stage 3 took 0.8× as long". */
export function questionWords(edits) {
  if (!edits.length) return ""
  if (edits.length > 1) return `these ${edits.length} changes were made`
  const [{ select = {}, change }] = edits
  return `${[opsWords(select.op_types), ...placeWords(select)].join(" ")} took ${changeWords(change)}`
}

/** Where: "on dp 3, stage 1 in step 9". */
function placeWords(select) {
  const { workers = [], stages = [], dp_ranks = [], steps = [], microbatches = [] } = select
  return [
    microbatches.length && `of ${numbered("micro-batch", microbatches, "es")}`,
    workers.length &&
      `on ${named(
        workers.map(([dpRank, stage]) => `dp ${whole(dpRank)}, stage ${whole(stage)}`),
        "worker",
      )}`,
    stages.length && `on ${numbered("stage", stages)}`,
    dp_ranks.length && `on ${numbered("dp rank", dp_ranks)}`,
    steps.length && `in ${numbered("step", steps)}`,
  ].filter(Boolean)
}

function changeWords({ kind, value, dp_rank, stage }) {
  switch (kind) {
    case "factor":
      return `${Number(value.toPrecision(3))}${TIMES} as long`
    case "add":
      return `${seconds(Math.abs(value))} ${value < 0 ? "less" : "more"}`
    case "set":
      return value === 0 ? "no time" : seconds(value)
    case "from-worker":
      return `as long as on dp ${whole(dp_rank)}, stage ${whole(stage)}`
  }
  return "the ideal time"
}

function numbered(noun, values, plural = "s") {
  const found = ranges(values)
  const shown = found.map(([first, last]) => (first === last ? whole(first) : `${whole(first)} to ${whole(last)}`))
  if (values.length === 1) return `${noun} ${shown[0]}`
  return shown.length > MAX_NAMED ? `${whole(values.length)} ${noun}${plural}` : `${noun}${plural} ${joined(shown)}`
}

const named = (words, noun) => (words.length > MAX_NAMED ? counted(words.length, noun) : joined(words))
const joined = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`)

/** The same question as a curl command. */
function curlCommand(origin, path, edits) {
  return [
    `curl -X POST ${quoted(`${origin}${path}`)}`,
    `  -H "Authorization: Bearer $PACELINE_TOKEN" -H "Content-Type: application/json"`,
    `  -d ${quoted(JSON.stringify({ edits }))}`,
  ].join(" \\\n")
}

/** The same question as a paceline command on a trace file. */
function cliCommand(edits) {
  return ["paceline what-if TRACE.parquet", ...edits.map((edit) => `  --edit ${quoted(editText(edit))}`)].join(" \\\n")
}

/** An edit as the command line has it: "op=pp-comm stage=0,2-3 factor=0.8". */
function editText({ select = {}, change }) {
  const fields = {
    op: "op_types",
    stage: "stages",
    dp: "dp_ranks",
    worker: "workers",
    step: "steps",
    mb: "microbatches",
  }
  const chosen = Object.entries(fields)
    .filter(([, field]) => select[field]?.length)
    .map(
      ([name, field]) =>
        `${name}=${name === "op" ? select[field].join(",") : listText(field, select[field]).replaceAll(" ", "")}`,
    )
  return [...chosen, changeText(change)].join(" ")
}

function changeText({ kind, value, dp_rank, stage }) {
  if (kind === "ideal") return kind
  return kind === "from-worker" ? `from=${dp_rank}/${stage}` : `${kind}=${value}`
}

/** Text quoted for a shell: the address may hold text from outside. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`

const WAYS = [
  ["curl", "curl"],
  ["cli", "Command line"],
]
const NOTES = {
  curl: "Needs a token with the scope read in PACELINE_TOKEN.",
  cli: "For a trace file; steps have the numbers of the file.",
}

/** The card; `way` is the one that shows, `path` the API's of this question. */
export function commandsCard({ edits, path, way, onWay }) {
  const command = way === "curl" ? curlCommand(location.origin, path, edits) : cliCommand(edits)
  return h(
    "section",
    { class: "card commands", "data-key": "commands", "aria-label": "Run this from a terminal" },
    h(
      "header",
      {},
      h("h2", {}, "Run this from a terminal"),
      segments("Command", WAYS, way, onWay),
      copyButton(() => command, { class: "text-button toggle" }),
    ),
    h("pre", { tabindex: "0", "aria-label": "Command" }, edits.length ? command : "# Describe a change first."),
    h("p", { class: "remark" }, NOTES[way]),
  )
}
