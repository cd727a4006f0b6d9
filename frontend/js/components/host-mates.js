/** The other workers of the job on the same host: is it the worker, or the machine? */

import { h } from "../dom.js"
import { contained, NOT_MEASURED, ratio, whole } from "../words.js"
import { hostHref, workerHref, workerName } from "./culprits.js"

/** The card; `page` has the job's base address and its window. */
export function hostMatesCard({ host, on_its_host, num_on_its_host }, page) {
  const name = host === null ? "its host" : h("a", { href: hostHref(host) }, contained(host))
  return h(
    "section",
    { class: "card", "data-key": "host-mates", "aria-label": "Others on its host" },
    h("header", {}, h("h2", {}, "Others on ", name, " in this job"), on_its_host.length > 0 && h("span", { class: "explanation" }, "if only that one were slow")),
    on_its_host.length > 0 && h("dl", { class: "facts" }, on_its_host.map((other) => row(other, page))),
    more(host, on_its_host.length, num_on_its_host),
  )
}

function row(other, page) {
  return [h("dt", {}, h("a", { href: workerHref(page, other) }, workerName(other))), h("dd", {}, other.slowdown === null ? NOT_MEASURED : ratio(other.slowdown))]
}

function more(host, shown, all) {
  if (host === null) return h("p", { class: "quiet" }, "The client has not said which host this worker is on.")
  if (!all) return h("p", { class: "quiet" }, "No other worker of this job is on this host.")
  return all > shown && h("p", { class: "quiet" }, `And ${whole(all - shown)} more.`)
}
