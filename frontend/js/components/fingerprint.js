/** The shape of the loss in a few bars, for a person to check a finding against. */

import { h } from "../dom.js"
import { optypeName, percentNumber, tidy } from "../words.js"

const VARIANCE = { between_stages: "between stages", between_workers: "between workers of a stage", within_workers: "within a worker" }
const MAX_TYPES = 6

/** The card; null where nothing was measured. */
export function fingerprintCard({ fingerprint, fidelity }) {
  if (!fingerprint) return null
  const variance = fingerprint.variance ?? {}
  const types = Object.entries(fingerprint.optype_share ?? {}).sort((a, b) => b[1] - a[1]).map(([name, share]) => [optypeName(name), share])
  return h(
    "section",
    { class: "card fingerprint", "data-key": "fingerprint", "aria-label": "Fingerprint" },
    h("header", {}, h("h2", {}, "Fingerprint"), h("span", { class: "explanation" }, "to check the findings against")),
    block("Forward compute varies", Object.entries(VARIANCE).map(([name, words]) => [words, variance[name]])),
    fidelity?.verdict === "low" ? withheld("Loss by operation") : block("Loss by operation", types.slice(0, MAX_TYPES)),
  )
}

function withheld(title) {
  return [h("h3", {}, title), h("p", { class: "quiet" }, "withheld: low fidelity")]
}

function block(title, rows) {
  const known = rows.filter(([, share]) => Number.isFinite(share))
  return [
    h("h3", {}, title),
    known.length ? h("dl", {}, known.map(row)) : h("p", { class: "quiet" }, "not measured"),
  ]
}

function row([name, share]) {
  const width = Math.min(100, Math.max(0, 100 * share))
  return [h("dt", {}, name), h("dd", { class: "number" }, h("i", {}, h("i", { style: `width: ${width.toFixed(1)}%` })), tidy(`${percentNumber(share, 0)} %`))]
}
