/** The charts of a job's page, each in its card. */

import { ChartCard, waitingCells } from "../components/chart-card.js"
import { ramp } from "../components/scale.js"
import { waitRamp } from "../components/waits.js"
import { h } from "../dom.js"
import { counted, whole } from "../words.js"

const SORTS = [
  ["rank", "by rank"],
  ["host", "by host"],
  ["slowdown", "slowest first"],
]

/** Cards by name; `spot` is shared by all of them, `onSort(sort)` takes an order of the heatmap. */
export function jobCards({ parallelism }, { spot, sortNow, onSort }) {
  const workers = parallelism.dp_size * parallelism.pp_size
  const steps = (key, title, explanation, below, legend) => new ChartCard({ key, title, explanation, legend, parts: ["steps", below], spot })
  return {
    workers: new ChartCard({
      key: "workers",
      title: "Which worker",
      explanation: "slowdown if only this worker were slow",
      legend: ramp,
      waiting: () => waitingCells(parallelism),
      spot,
      controls: workers > 1 ? () => sortField(sortNow(), onSort) : null,
    }),
    waited: new ChartCard({ key: "waited-for", title: "Waited for", explanation: "how long the other ranks waited for each rank", legend: waitRamp, spot }),
    steps: steps("steps", "Step time and worst workers", workers > 14 ? `14 slowest of ${whole(workers)}` : `${counted(workers, "worker")}, slowest first`, "worker-steps", stepLegend),
    ranks: steps("ranks", "Step time and dp ranks", "the slowest rank, step by step", "dp-steps", () => [stepLegend(), ramp()]),
    optypes: new ChartCard({ key: "optypes", title: "Where the loss is", explanation: "by operation" }),
    stages: new ChartCard({ key: "stages", title: "Stages", explanation: "time of a micro-batch, and share won back", legend: stageLegend, spot }),
    lengths: new ChartCard({ key: "lengths", title: "Time against lengths", explanation: "each dot a micro-batch" }),
  }
}

function sortField(now, onSort) {
  return h(
    "select",
    { class: "field is-small", "aria-label": "Order of the workers", onchange: (event) => onSort(event.target.value) },
    SORTS.map(([value, text]) => h("option", { value, selected: value === (now ?? "rank") }, text)),
  )
}

function stepLegend() {
  return legend(["is-recorded", "recorded"], ["is-simulated", "simulated"], ["is-ideal", "without stragglers"], ["is-area", "time lost"])
}

function stageLegend() {
  return legend(["is-forward", "forward"], ["is-backward", "backward"], ["is-mean", "mean over stages"])
}

function legend(...items) {
  return h("span", { class: "legend" }, items.map(([kind, text]) => h("span", {}, h("i", { class: kind }), text)))
}
