/** The top of a job's page: where it is, what is wrong, and what to do next. */

import { leadingFinding } from "../../components/findings-card.js"
import { headline } from "../../components/page-head.js"
import { h } from "../../lib/dom.js"
import { contained, counted, shape } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { labelLinks } from "./more-menu.js"

// Jobs in these states have a sentence that does not change from step to step.
const STILL = new Set([
  "finished",
  "crashed",
  "preempted",
  "not-analysed",
  "stalled",
  "silent",
  "unknown",
  "low-fidelity",
])

/** Crumbs, headline, buttons and the menu `more`; `window` and `steps` are those that the page shows. */
export function jobHead({ job, summary, base, window, steps, result, pinned, before, more, onShare }) {
  return [
    crumbs(job),
    h(
      "div",
      {
        class: STILL.has(job.state) ? "head" : job.state === "straggling" ? "head is-live is-long" : "head is-live",
        "data-key": "head",
      },
      headline(summary),
      h("div", { class: "acts-row" }, buttons({ job, base, window, steps, result, pinned, before, onShare }), more),
    ),
  ]
}

function crumbs(job) {
  const more = [job.framework, hasHostTimes(job) && "host times"].filter(Boolean).map((text) => `, ${contained(text)}`)
  return h(
    "div",
    { class: "crumbs", "data-key": "crumbs" },
    h("a", { href: "/" }, "Fleet"),
    h("span", {}, "/"),
    h("b", {}, contained(job.name)),
    h("span", { class: "shape" }, `${shape(job.parallelism)}, ${counted(job.gpus, "GPU")}`, more),
    labelLinks(job),
  )
}

/** Whether times are of hosts, less exact than those of GPUs (docs/feeds/otlp.md); OTLP jobs have the second label. */
function hasHostTimes({ labels }) {
  return labels?.times === "host" || labels?.host_times === "analyse"
}

function buttons({ job, base, window, steps, result, pinned, before, onShare }) {
  if (!result?.slowdown) return null
  const own = window === "recent" ? result.window.id : window
  return h(
    "nav",
    { class: "acts", "aria-label": "Look closer", "data-key": "acts" },
    may("write") && h("button", { class: "button", type: "button", onclick: onShare }, "Share"),
    h(
      "a",
      {
        class: "button",
        href: `/compare?${query({ a: before && `${job.job_id}:${before}`, b: `${job.job_id}:${own}` })}`,
      },
      "Compare",
    ),
    h(
      "a",
      { class: "button", href: `${base}/what-if${queried({ window: window === "recent" ? null : window, steps })}` },
      "What if",
    ),
    h(
      "a",
      { class: "button is-primary", href: `${base}/timeline${queried(proof({ window, result, pinned }))}` },
      "Timeline",
    ),
  )
}

/** The step and dp rank whose timeline shows the cause: those pinned, else the finding's own. */
function proof({ window, result, pinned }) {
  const leading = leadingFinding(result.findings)
  const { steps } = result
  const seen = (leading?.evidence.steps ?? []).filter((step) => steps.includes(step))
  const dp = pinned.dp ?? leading?.culprits[0]?.dp_rank ?? leading?.evidence.workers?.[0]?.[0]
  return { window: window === "recent" ? null : window, step: pinned.step ?? seen.at(-1) ?? steps.at(-1), dp }
}

const queried = (parts) => (query(parts) ? `?${query(parts)}` : "")

function query(parts) {
  const known = Object.entries(parts).filter(([, value]) => value !== null && value !== undefined && value !== false)
  return new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString()
}
