/** The charts of a job's page: which there are, and which one leads. */

import { ChartCard, waitingCells } from "../components/chart-card.js"
import { ramp } from "../components/scale.js"
import { h, patch } from "../dom.js"
import { counted, percentNumber, whole } from "../words.js"

// From here on the stages explain more of the loss than any few workers do.
const MIN_SHARE = 0.5

// As many as the server draws at once.
const DRAWN_STEPS = 200

/** Cards in two columns; the one that best shows where the loss is comes first. */
export class Panels {
  constructor(root, base) {
    this.root = root
    this.base = base
    this.cards = null
    this.lead = null
  }

  /** Fetch every chart of the page's window; `isRepaint` when only the theme has changed. */
  load(page, isRepaint = false) {
    if (!page.job) return
    this.cards ??= makeCards(page.job)
    if (!isRepaint) this.arrange(page)
    if (page.result?.slowdown === null || !page.result) return this.sayNotAnalysed(page)
    this.draw(page)
  }

  /** Let the next window choose its own lead panel; while following, the order stays. */
  forgetOrder() {
    this.lead = null
  }

  /** Stop watching the page. */
  remove() {
    for (const card of Object.values(this.cards ?? {})) card.remove()
  }

  arrange({ job, result }) {
    const { workers, steps, optypes, stages } = this.cards
    if (result?.slowdown) this.lead ??= leadOf(result)
    const hasStages = job.parallelism.pp_size > 1
    const [first, aside] = this.lead === "stages" ? [stages, workers] : [workers, stages]
    const right = [hasStages || aside === workers ? aside.node : null, optypes.node, result && facts(result)]
    patch(
      this.root,
      h("div", { class: "panels", "data-key": "panels" }),
    )
    const panels = this.root.firstChild
    patch(panels, h("div", { class: "column", "data-key": "left" }), h("div", { class: "column", "data-key": "right" }))
    patch(panels.children[0], first.node, steps.node)
    patch(panels.children[1], right)
  }

  draw({ result, job, picked, shown, windows }) {
    const window = `${this.base}/windows/${encodeURIComponent(picked)}/charts`
    const isWithheld = result.fidelity?.verdict === "low"
    const { workers, steps, optypes, stages } = this.cards
    steps.load({ steps: `${this.base}/charts/steps${range(shown, windows)}`, ...(!isWithheld && { "worker-steps": `${window}/worker-steps` }) })
    if (isWithheld) return this.withhold(result)
    optypes.load({ optypes: `${window}/optypes` })
    workers.load({ workers: `${window}/workers` })
    if (job.parallelism.pp_size > 1) stages.load({ stages: `${window}/stages` })
  }

  withhold({ fidelity }) {
    const text = `The simulated step differs from the recorded one by ${percentNumber(fidelity.discrepancy)} %, over the limit of 5 %. Naming a cause would be a guess.`
    for (const card of [this.cards.workers, this.cards.stages, this.cards.optypes]) card.say({ markName: "low-fidelity", title: "Withheld: low fidelity", text })
  }

  sayNotAnalysed({ told }) {
    for (const card of Object.values(this.cards)) card.say({ markName: "not-analysed", title: "Not analysed yet", text: told.sentence })
  }
}

/** The steps to draw: the run's last ones if the window is among them, else only its own. */
function range(shown, windows) {
  if (!shown) return ""
  const sameRun = windows.filter((window) => window.epoch === shown.epoch && window.first_step >= shown.first_step)
  const numSince = sameRun.reduce((total, window) => total + window.last_step - window.first_step + 1, 0)
  const own = numSince > DRAWN_STEPS ? `&first=${shown.first_step}&last=${shown.last_step}` : ""
  return `?epoch=${shown.epoch}${own}`
}

function leadOf({ m_w, stage_share }) {
  const best = Math.max(...(stage_share ?? []).map((share) => share ?? 0), 0)
  return stage_share?.length > 1 && best >= MIN_SHARE && (m_w ?? 0) < MIN_SHARE ? "stages" : "workers"
}

function makeCards({ parallelism }) {
  const { dp_size, pp_size } = parallelism
  const workers = dp_size * pp_size
  return {
    workers: new ChartCard({
      key: "workers",
      title: "Which worker",
      explanation: "slowdown if only this worker were slow",
      legend: ramp,
      waiting: () => waitingCells(parallelism),
    }),
    steps: new ChartCard({
      key: "steps",
      title: "Step time and worst workers",
      explanation: workers > 14 ? `14 slowest of ${whole(workers)}` : `${counted(workers, "worker")}, slowest first`,
      legend: stepLegend,
      parts: ["steps", "worker-steps"],
    }),
    optypes: new ChartCard({ key: "optypes", title: "Where the loss is", explanation: "by operation" }),
    stages: new ChartCard({ key: "stages", title: "Stages", explanation: "loss won back by fixing each" }),
  }
}

function stepLegend() {
  const item = (kind, text) => h("span", {}, h("i", { class: kind }), text)
  return h(
    "span",
    { class: "legend" },
    item("is-recorded", "recorded"),
    item("is-simulated", "simulated"),
    item("is-ideal", "without stragglers"),
    item("is-area", "time lost"),
  )
}

function facts({ window, steps, skipped_steps }) {
  const skipped = skipped_steps.map(({ step, reason }) => `${whole(step)}: ${reason}`).join("; ")
  const rows = [
    ["Window", `${window.id}, revision ${window.revision}`],
    ["State", window.state],
    ["Steps", steps.length ? `${whole(steps[0])}${steps.length > 1 ? ` to ${whole(steps.at(-1))}` : ""}, ${steps.length} recorded` : "none yet"],
    ["Skipped", skipped || "none"],
    ["Ranks missing", window.missing.length ? window.missing.slice(0, 8).join(", ") + (window.missing.length > 8 ? ` and ${window.missing.length - 8} more` : "") : "none"],
  ]
  return h(
    "section",
    { class: "card", "data-key": "facts", "aria-label": "What was measured" },
    h("header", {}, h("h2", {}, "What was measured")),
    h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  )
}
