/** What a job without any figures waits for. */

import { h } from "../dom.js"
import { ago, whole } from "../words.js"

/** The card; in place of the findings. */
export function missingCard(job) {
  const rows = [
    ["Complete steps", `none of ${whole(job.window_steps)}`],
    ["Last step begun", job.last_step === null ? "none" : whole(job.last_step)],
    ["Last data", job.last_data_at ? ago(new Date(job.last_data_at)) : "none so far"],
  ]
  return h(
    "section",
    { class: "card", "data-key": "missing", "aria-label": "What is missing" },
    h("header", {}, h("h2", {}, "What is missing")),
    h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("p", { class: "remark" }, why(job)),
  )
}

function why({ state, last_data_at }) {
  if (state === "finished") return "No step of this run was complete when it ended: findings need one that every worker has reported."
  if (!last_data_at) return "The job is registered, and none of its workers has sent anything. Findings, fingerprint and what was measured come with the first complete step."
  return "Findings, fingerprint and what was measured come with the first step that every worker has reported."
}
