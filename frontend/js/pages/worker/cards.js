/** Figures of one worker, other workers on its host, and the groups that it communicates in. */

import { hostHref, workerHref, workerName } from "../../components/culprits.js"
import { term } from "../../components/definition.js"
import { statStrip } from "../../components/stat-strip.js"
import { h } from "../../lib/dom.js"
import { contained, counted, NOT_MEASURED, percentNumber, ratio, seconds, tidy, whole } from "../../lib/formatting.js"

/** The strip; `worker` is the API's answer. */
export function workerStats(worker) {
  return statStrip([slowdown(worker), place(worker), ofJob(worker), launch(worker), waited(worker), lost(worker)])
}

const unknown = ({ verdict }) => (verdict === "low" ? "withheld: low fidelity" : "no complete step yet")

function slowdown(worker) {
  const label = "If only this worker were slow"
  return worker.slowdown === null
    ? { label, note: unknown(worker) }
    : { label, figure: ratio(worker.slowdown), note: "slowdown of the job, exact" }
}

function place(worker) {
  const label = "Rank by slowdown"
  const { num_workers } = worker
  if (worker.place === null) return { label, note: unknown(worker) }
  return {
    label,
    figure: whole(worker.place),
    unit: `of ${whole(num_workers)}`,
    note: worker.place === 1 ? "none costs more" : "1 is the slowest",
  }
}

function ofJob(worker) {
  const label = "Slowdown of the job"
  return worker.job_slowdown === null
    ? { label, note: unknown(worker) }
    : { label, figure: ratio(worker.job_slowdown), note: "as it runs" }
}

function launch({ launch_delay_s }) {
  return {
    label: "Launch delay",
    ...time(launch_delay_s),
    note: launch_delay_s === null ? "no complete step yet" : "per step, on this worker",
  }
}

function waited({ others_waited_s }) {
  return {
    label: "Others waited for that",
    ...time(others_waited_s),
    note: others_waited_s === null ? "no complete step yet" : "per step, all others together",
  }
}

function lost({ dropped }) {
  const label = "Dropped by its recorder"
  if (dropped === null) return { label, note: "not reported" }
  return { label, figure: whole(dropped), note: dropped ? "operations, never sent" : "all were sent" }
}

function time(value_s) {
  if (value_s === null) return {}
  const [figure, unit] = value_s < 1e-6 ? ["0", "ms"] : seconds(value_s).split(" ")
  return { figure, unit }
}

/** The card; `page` has the job's base address and its window. */
export function hostMatesCard({ host, on_its_host, num_on_its_host }, page) {
  const name = host === null ? "its host" : h("a", { href: hostHref(host) }, contained(host))
  return h(
    "section",
    { class: "card", "data-key": "host-mates", "aria-label": "Others on its host" },
    h(
      "header",
      {},
      h("h2", {}, "Others on ", name, " in this job"),
      on_its_host.length > 0 && h("span", { class: "explanation" }, "if only that one were slow"),
    ),
    on_its_host.length > 0 &&
      h(
        "dl",
        { class: "facts" },
        on_its_host.map((other) => workerRow(other, page)),
      ),
    more(host, on_its_host.length, num_on_its_host),
  )
}

function workerRow(other, page) {
  return [
    h("dt", {}, h("a", { href: workerHref(page, other) }, workerName(other))),
    h("dd", {}, other.slowdown === null ? NOT_MEASURED : ratio(other.slowdown)),
  ]
}

function more(host, shown, all) {
  if (host === null) return h("p", { class: "quiet" }, "The host of this worker is not reported.")
  if (!all) return h("p", { class: "quiet" }, "No other worker of this job is on this host.")
  return all > shown && h("p", { class: "quiet" }, `And ${whole(all - shown)} more.`)
}

const AXES = {
  dp: "Data-parallel group",
  tp: "Tensor-parallel group",
  cp: "Context-parallel group",
  ep: "Expert-parallel group",
  pp: "Pipeline group",
}

/** The card; nothing where no group of the worker has recorded collectives. */
export function workerGroupsCard({ groups }) {
  if (!groups?.length) return null
  return h(
    "section",
    { class: "card groups", "data-key": "groups", "aria-label": "Its groups" },
    h("header", {}, h("h2", {}, "Late to collectives"), h("span", { class: "explanation" }, "mean per step, by group")),
    groups.map(group),
  )
}

function group({ name, axis, num_ranks, num_occurrences, transfer_s, bandwidth_bytes_s, members }) {
  const most_s = Math.max(...members.map((member) => member.waited_for_s), 0)
  const facts = [
    counted(num_ranks, "rank"),
    counted(num_occurrences, "collective"),
    transfer_s !== null && `transfer ${seconds(transfer_s)}`,
    bandwidth_bytes_s !== null && bandwidth(bandwidth_bytes_s),
  ]
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
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", {}, "rank"),
            h("th", {}, "host"),
            h("th", {}, term("others wait for it", "waited_for_s")),
            h("th", { class: "is-number" }, term("it waits", "waited_s")),
            h("th", { class: "is-number" }, term("late", "late_share")),
          ),
        ),
        h(
          "tbody",
          {},
          members.map((member) => groupRow(member, most_s)),
        ),
      ),
    ),
    left > 0 && h("p", { class: "quiet" }, `${counted(left, "more rank")}, with shorter waits.`),
  )
}

function groupRow({ rank, local_rank, host, waited_for_s, waited_s, late_share, is_own }, most_s) {
  const width = most_s > 0 ? (100 * waited_for_s) / most_s : 0
  const where = [host && contained(host), local_rank !== null && `GPU ${whole(local_rank)}`].filter(Boolean).join(", ")
  return h(
    "tr",
    { class: is_own && "is-own", "data-key": String(rank) },
    h("td", {}, is_own ? h("b", {}, whole(rank)) : whole(rank), is_own && h("small", {}, " this worker")),
    h("td", {}, where || "not known"),
    h(
      "td",
      {},
      h(
        "div",
        { class: "meter" },
        h("i", { class: "bar" }, h("i", { style: `width: ${width.toFixed(1)}%` })),
        h("span", {}, waitTime(waited_for_s)),
      ),
    ),
    h("td", { class: "is-number" }, waitTime(waited_s)),
    h("td", { class: "is-number" }, tidy(`${percentNumber(late_share, 0)} %`)),
  )
}

const waitTime = (value_s) => (value_s < 1e-6 ? "0 ms" : seconds(value_s))

function bandwidth(bytes_s) {
  const gigabytes = bytes_s / 1e9
  return `${gigabytes >= 10 ? whole(gigabytes) : Number(gigabytes.toPrecision(2))} GB/s`
}
