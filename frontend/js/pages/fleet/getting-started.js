/** How to send the first steps; shown while there are no jobs. */

import { copyButton } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"

const WAYS = {
  Python: {
    steps: (address) => [
      ["Install the recorder on every worker, from a checkout of Paceline", "pip install ./client"],
      ["Record each step and its operations", pythonExample(address)],
    ],
    last: "Start training",
  },
  HTTP: {
    steps: (address) => [
      ["Register the job; every rank sends the same run_key", registerExample(address)],
      ["Send each rank's operations when it has finished a step", sendExample(address)],
    ],
    last: "Start training",
  },
  "A trace file": {
    steps: (address) => [
      [
        "Push a recorded trace as its workers would have",
        `export PACELINE_URL=${address} PACELINE_TOKEN="your token"\npaceline replay TRACE.parquet --meta META.yaml`,
      ],
      ["Or look at its figures without a server", "paceline analyze TRACE.parquet --meta META.yaml"],
    ],
    last: "Watch it arrive",
  },
}

/** The page's content; `way` is the chosen tab, `onWay` chooses another. */
export function gettingStarted({ way = "Python", onWay }) {
  const { steps, last } = WAYS[way]
  const address = location.origin
  return h(
    "div",
    { class: "first-start" },
    h(
      "section",
      { class: "headline" },
      h("h1", {}, "No jobs yet. Send the first steps and they appear here."),
      h(
        "p",
        {},
        "The first figures come with the first complete step: one that the workers have reported. " +
          "A missing worker does not hold up the others: it is named, and medians of its stage stand in.",
      ),
    ),
    h(
      "section",
      { class: "card ways" },
      h(
        "header",
        {},
        tabs(way, onWay),
        copyButton(() => codeOf(steps(address)), { class: "button" }),
      ),
      h(
        "div",
        { id: "way", role: "tabpanel", "aria-label": way },
        h(
          "ol",
          {},
          steps(address).map(([act, code]) => h("li", {}, h("b", {}, act), h("pre", {}, h("code", {}, code)))),
          h("li", {}, h("b", {}, last), listening(address)),
        ),
      ),
    ),
    h(
      "section",
      { class: "card demo" },
      h(
        "div",
        {},
        h("b", {}, "No cluster at hand?"),
        h(
          "span",
          {},
          "See four simulated jobs, live: a healthy one, one with a slow worker, ",
          "one with a long last stage, one with uneven sequence lengths.",
        ),
      ),
      h("code", {}, "paceline demo"),
    ),
    h(
      "div",
      { class: "nothing-arrives" },
      h(
        "p",
        {},
        "No data arrives? The recorder never stops training: it logs why it cannot send on the worker. ",
        "Check from a worker that it reaches this server:",
      ),
      h("pre", {}, h("code", {}, checkExample(address))),
    ),
  )
}

function tabs(way, onWay) {
  const names = Object.keys(WAYS)
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (!by) return
    const next = (names.indexOf(way) + by + names.length) % names.length
    event.currentTarget.children[next].focus()
    onWay(names[next])
  }
  return h(
    "div",
    { class: "segments", role: "tablist", "aria-label": "Ways to send data", onkeydown: move },
    names.map((name) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          "aria-selected": String(name === way),
          "aria-controls": "way",
          tabindex: name === way ? "0" : "-1",
          onclick: () => onWay(name),
        },
        name,
      ),
    ),
  )
}

const codeOf = (steps) => steps.map(([, code]) => code).join("\n\n")

function listening(address) {
  return h(
    "div",
    { class: "listening" },
    h(
      "span",
      { class: "state" },
      stateIcon("silent"),
      h("span", {}, "Listening on ", h("code", {}, `${address}/api/v1`)),
    ),
    h("span", { class: "quiet" }, "no data received yet"),
  )
}

function checkExample(address) {
  return `curl ${address}/api/v1/jobs -H "Authorization: Bearer $PACELINE_TOKEN"`
}

function pythonExample(address) {
  return `import paceline_client

recorder = paceline_client.start(
    "my-first-job", "${address}", "your token",
    rank=rank, dp_rank=dp_rank, stage=stage,
    dp_size=8, pp_size=4, run_key="run 1, equal on all ranks",
)
for step, batch in enumerate(loader):
    with recorder.step(step):
        with recorder.op("forward-compute", microbatch=0):
            loss = model(batch)
        with recorder.op("backward-compute", microbatch=0):
            loss.backward()`
}

function registerExample(address) {
  return `curl -X PUT ${address}/api/v1/jobs/my-first-job \\
  -H "Authorization: Bearer $PACELINE_TOKEN" -H "Content-Type: application/json" \\
  -d '{"parallelism": {"dp_size": 8, "pp_size": 4}, "run_key": "run-1"}'`
}

function sendExample(address) {
  return `curl -X POST ${address}/api/v1/jobs/my-first-job/ops \\
  -H "Authorization: Bearer $PACELINE_TOKEN" -H "Content-Type: application/json" \\
  -d '{"version": 1, "epoch": 1, "rank": 0, "dp_rank": 0, "stage": 0, "batch_seq": 0,
       "steps_done": [[0, 2]],
       "columns": {"step": [0, 0], "optype": ["forward-compute", "backward-compute"],
                   "start_ns": [0, 410000000], "duration_ns": [400000000, 800000000],
                   "mb_id": [0, 0]}}'`
}
