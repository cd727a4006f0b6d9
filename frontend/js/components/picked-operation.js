/** The operation that a timeline's reader has chosen, kept in the address and asked for. */

import { getJson } from "../api.js"
import { announce } from "../dom.js"
import { choose, chosen } from "../selection.js"
import { seconds } from "../words.js"
import { operationName } from "./operation-card.js"

/** What is chosen (`picked`), what the API says of it (`found`), and why it says nothing (`error`). */
export class PickedOperation {
  /** `onChange()` is called when there is something else to draw. */
  constructor(onChange) {
    Object.assign(this, { onChange, picked: null, found: null, error: null })
  }

  /** Take what the address names, or what says most of the step that is shown. */
  start(path, query, telling) {
    Object.assign(this, { path, query, found: null })
    const [run, stage, optype, seqId] = chosen("op").op?.split(",") ?? []
    const first = telling && { run: "recorded", stage: telling.stage, optype: telling.optype, seqId: telling.seq_id }
    return this.show(optype ? { run, stage: Number(stage), optype, seqId: Number(seqId) } : first)
  }

  /** The reader chooses one, or none. */
  async pick(operation) {
    choose({ op: operation && [operation.run, operation.stage, operation.optype, operation.seqId].join(",") })
    await this.show(operation)
    if (this.picked === operation && this.found) announce(`${operationName(this.found)}, stage ${operation.stage}, ${seconds(this.found.duration_s)}`)
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
