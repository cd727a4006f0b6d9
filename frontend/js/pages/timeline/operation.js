/** The selected operation of a timeline: kept in the address, requested, and shown in a card. */

import { hostHref, workerHref, workerName } from "../../components/culprits.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { announce, h } from "../../lib/dom.js"
import { contained, NOT_MEASURED, ratio, seconds, whole } from "../../lib/formatting.js"

/** What is chosen (`picked`), what the API says of it (`found`), and why it says nothing (`error`). */
export class PickedOperation {
  /** `onChange()` is called when there is something else to draw. */
  constructor(onChange) {
    Object.assign(this, { onChange, picked: null, found: null, error: null })
  }

  /** Take what the address names, or what says most of the step that is shown. */
  start(path, query, telling) {
    Object.assign(this, { path, query, found: null })
    const [run, stage, optype, seqId] = readAddress("op").op?.split(",") ?? []
    const first = telling && { run: "recorded", stage: telling.stage, optype: telling.optype, seqId: telling.seq_id }
    return this.show(optype ? { run, stage: Number(stage), optype, seqId: Number(seqId) } : first)
  }

  /** The reader chooses one, or none. */
  async pick(operation) {
    updateAddress({ op: operation && [operation.run, operation.stage, operation.optype, operation.seqId].join(",") })
    await this.show(operation)
    if (this.picked === operation && this.found)
      announce(`${operationName(this.found)}, stage ${operation.stage}, ${seconds(this.found.duration_s)}`)
  }

  async show(operation) {
    this.picked = operation
    this.onChange()
    const [found, error] = operation ? await this.ask(operation) : [null, null]
    if (this.picked !== operation) return
    Object.assign(this, { found, error })
    this.onChange()
  }

  async ask({ run, stage, optype, seqId }) {
    const query = new URLSearchParams(this.query)
    for (const [name, value] of Object.entries({ run, stage, optype, seq_id: seqId })) query.set(name, value)
    try {
      return [await getJson(`${this.path}/operation?${query}`), null]
    } catch (error) {
      return [null, error.message]
    }
  }
}

const NAMES = { "forward-compute": "forward", "backward-compute": "backward" }
const MICROSECOND = 1e-6

/** The card; `found` is the API's operation, null while none is chosen. */
export function operationCard(found, { base, window, error }) {
  return h(
    "section",
    { class: "card operation", "data-key": "operation", "aria-label": "Selected operation" },
    h("header", {}, h("h2", {}, "Selected operation")),
    found
      ? h(
          "dl",
          { class: "facts" },
          rows(found, base, window).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
        )
      : h("p", { class: "quiet" }, error ?? "Click on a bar, or move with the arrow keys."),
  )
}

/** An operation in words: "forward, micro-batch 3". */
function operationName({ optype, microbatch }) {
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
    [
      "Against its peers",
      peers_s === null ? "no other worker has one" : peers_s > 0 ? ratio(own_s / peers_s) : NOT_MEASURED,
    ],
    [
      "Waited for",
      after
        ? `${operationName(after)}${after.stage === found.stage ? "" : `, stage ${whole(after.stage)}`}`
        : "nothing: it is the first",
    ],
    ["Launch delay", time(found.delay_s)],
    found.run === "recorded" && ["On the critical path", found.is_critical ? "yes" : "no"],
  ].filter(Boolean)
}

/** A duration; below a microsecond it is nothing, and clocks that disagree make it negative. */
function time(value_s) {
  if (Math.abs(value_s) < MICROSECOND) return "0 ms"
  return value_s < 0 ? `\u2212${seconds(-value_s)}` : seconds(value_s)
}
