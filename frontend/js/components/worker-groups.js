/** The groups that a worker's ranks communicate in: who of them is late, and what the others wait for that. */

import { h } from "../dom.js"
import { contained, counted, percentNumber, seconds, tidy, whole } from "../words.js"

const AXES = { dp: "Data-parallel group", tp: "Tensor-parallel group", cp: "Context-parallel group", ep: "Expert-parallel group", pp: "Pipeline group" }

/** The card; nothing where no group of the worker has recorded collectives. */
export function workerGroupsCard({ groups }) {
  if (!groups?.length) return null
  return h(
    "section",
    { class: "card groups", "data-key": "groups", "aria-label": "Its groups" },
    h("header", {}, h("h2", {}, "Late to collectives"), h("span", { class: "explanation" }, "mean a step, by group that it is in")),
    groups.map(group),
  )
}

function group({ name, axis, num_ranks, num_occurrences, transfer_s, bandwidth_bytes_s, members }) {
  const most_s = Math.max(...members.map((member) => member.waited_for_s), 0)
  const facts = [counted(num_ranks, "rank"), counted(num_occurrences, "collective"), transfer_s !== null && `transfer ${seconds(transfer_s)}`, bandwidth_bytes_s !== null && bandwidth(bandwidth_bytes_s)]
  const left = num_ranks - members.length
  return h(
    "div",
    { class: "group", "data-key": name },
    h("h3", {}, `${AXES[axis] ?? "Group"}: ${contained(name)}`),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(", ")),
    h(
      "div",
      { class: "table-frame", tabindex: "0", role: "region", "aria-label": `Members of ${contained(name)}` },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", {}, "rank"), h("th", {}, "host"), h("th", {}, "others wait for it"), h("th", { class: "is-number" }, "it waits"), h("th", { class: "is-number" }, "late"))),
        h("tbody", {}, members.map((member) => row(member, most_s))),
      ),
    ),
    left > 0 && h("p", { class: "quiet" }, `${counted(left, "more rank")}, waited for no longer than these.`),
  )
}

function row({ rank, local_rank, host, waited_for_s, waited_s, late_share, is_own }, most_s) {
  const width = most_s > 0 ? (100 * waited_for_s) / most_s : 0
  const where = [host && contained(host), local_rank !== null && `GPU ${whole(local_rank)}`].filter(Boolean).join(", ")
  return h(
    "tr",
    { class: is_own && "is-own", "data-key": String(rank) },
    h("td", {}, is_own ? h("b", {}, whole(rank)) : whole(rank), is_own && h("small", {}, " this worker")),
    h("td", {}, where || "not known"),
    h("td", {}, h("div", { class: "meter" }, h("i", { class: "bar" }, h("i", { style: `width: ${width.toFixed(1)}%` })), h("span", {}, time(waited_for_s)))),
    h("td", { class: "is-number" }, time(waited_s)),
    h("td", { class: "is-number" }, tidy(`${percentNumber(late_share, 0)} %`)),
  )
}

const time = (value_s) => (value_s < 1e-6 ? "0 ms" : seconds(value_s))

function bandwidth(bytes_s) {
  const gigabytes = bytes_s / 1e9
  return `${gigabytes >= 10 ? whole(gigabytes) : Number(gigabytes.toPrecision(2))} GB/s`
}
