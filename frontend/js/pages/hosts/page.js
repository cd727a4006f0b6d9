/** Hosts that were slow in several jobs: the list to drain from. */

import { hostHref } from "../../components/culprits.js"
import { term } from "../../components/definition.js"
import { panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { ago, contained, counted, gpuHours, NOT_MEASURED, ratio, whole } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"

export const path = /^\/hosts$/
export const title = "Hosts"

const PAGE = 100
const DAYS = [7, 30, 90]
const USUAL_DAYS = 30

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, { onRefused }) {
  const page = { answer: null, error: null, most: PAGE, hasLeft: false, asked: null }
  const draw = () => patch(root, content(page, { ask, more, retry: refresh }))
  const refresh = async () => {
    const asked = Symbol("asked")
    page.asked = asked
    const answer = await fetchHosts(choice(), page.most).catch((error) => error)
    if (page.hasLeft || page.asked !== asked) return
    if (answer.status === 401) return onRefused()
    Object.assign(page, answer instanceof Error ? { error: answer } : { answer, error: null })
    draw()
  }
  const ask = (changes) => {
    updateAddress(changes)
    page.most = PAGE
    refresh()
  }
  const more = () => {
    page.most += PAGE
    refresh()
  }
  refresh()
  const stop = onChange(refresh)
  return () => {
    page.hasLeft = true
    stop()
  }
}

/** The period in days, and the minimum number of jobs. */
function choice() {
  const { days, jobs } = readAddress("days", "jobs")
  return { days: DAYS.includes(Number(days)) ? Number(days) : USUAL_DAYS, min_jobs: jobs === "1" ? 1 : 2 }
}

async function fetchHosts(choice, most) {
  let answer = { items: [], next_cursor: null }
  do {
    const query = new URLSearchParams({
      ...choice,
      limit: PAGE,
      ...(answer.next_cursor && { cursor: answer.next_cursor }),
    })
    const next = await getJson(`/hosts?${query}`)
    answer = { ...next, items: [...answer.items, ...next.items] }
  } while (answer.next_cursor && answer.items.length < most)
  return answer
}

function content({ answer, error }, acts) {
  if (!answer)
    return [headline({ sentence: "Hosts" }), error && panelFailed("Could not load the hosts", error, acts.retry)]
  return [
    headline(sentence(answer)),
    h("div", {}, error && panelFailed("Could not load the hosts", error, acts.retry)),
    h(
      "section",
      { class: "card ledger", "aria-label": "Hosts" },
      filters(acts.ask),
      answer.items.length ? table(answer.items) : none(),
      answer.next_cursor && showMore(acts.more),
    ),
  ]
}

function sentence({ items, next_cursor }) {
  const { days, min_jobs } = choice()
  const where = min_jobs === 1 ? "in a job" : "in two jobs or more"
  const sub = `Of the last ${days} days. A host is counted where a finding named it as the culprit.`
  if (!items.length) return { sentence: `No host was slower than its peers ${where}.`, sub }
  const number = next_cursor ? `More than ${counted(items.length, "host")}` : counted(items.length, "host")
  return {
    sentence: `${number} ${items.length === 1 ? "was slower than its" : "were slower than their"} peers ${where}.`,
    sub,
  }
}

function filters(ask) {
  const { days, min_jobs } = choice()
  const find = (event) => {
    event.preventDefault()
    const host = new FormData(event.currentTarget).get("host").trim()
    // Followed like any other link, so that the document is not reloaded.
    if (host) event.currentTarget.querySelector("a").setAttribute("href", hostHref(host))
    if (host) event.currentTarget.querySelector("a").click()
  }
  return h(
    "div",
    { class: "fleet-filters" },
    h(
      "form",
      { class: "find", onsubmit: find },
      h("input", {
        class: "field",
        name: "host",
        "aria-label": "Host name",
        placeholder: "Exact host name",
        maxlength: "255",
        autocomplete: "off",
        spellcheck: "false",
      }),
      h("button", { class: "button", type: "submit" }, "Open"),
      h("a", { href: "/hosts", hidden: true, tabindex: "-1" }),
    ),
    h(
      "div",
      { class: "right" },
      pick(
        "In how many jobs",
        [
          [2, "In two jobs or more"],
          [1, "In any job"],
        ],
        min_jobs,
        (value) => ask({ jobs: value === "2" ? null : value }),
      ),
      pick(
        "Days",
        DAYS.map((each) => [each, `Last ${each} days`]),
        days,
        (value) => ask({ days: value === String(USUAL_DAYS) ? null : value }),
      ),
    ),
  )
}

function pick(label, choices, now, onpick) {
  return h(
    "select",
    { class: "field", "aria-label": label, onchange: (event) => onpick(event.currentTarget.value) },
    choices.map(([value, text]) => h("option", { value, selected: value === now }, text)),
  )
}

function table(hosts) {
  const isPriced = money(1) !== ""
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "Host"),
        h("th", { scope: "col", class: "number" }, "Jobs"),
        h("th", { scope: "col", class: "number" }, term("Worst slowdown", "worker_slowdown")),
        h("th", { scope: "col", class: "number" }, term("Lost, GPU-h", "gpu_hours_lost")),
        isPriced && h("th", { scope: "col", class: "number at-desk" }, "Cost"),
        h("th", { scope: "col", class: "number at-desk" }, "Last found slow"),
      ),
    ),
    h(
      "tbody",
      {},
      hosts.map((host) => row(host, isPriced)),
    ),
  )
}

function row({ host, jobs, worst_slowdown, gpu_hours_lost, last_seen_at }, isPriced) {
  return h(
    "tr",
    { "data-key": host },
    h("th", { scope: "row" }, h("a", { href: hostHref(host) }, contained(host))),
    h("td", { class: "number" }, whole(jobs)),
    h(
      "td",
      { class: "number" },
      worst_slowdown === null ? h("span", { class: "quiet" }, NOT_MEASURED) : ratio(worst_slowdown),
    ),
    h("td", { class: "number" }, gpuHours(gpu_hours_lost)),
    isPriced && h("td", { class: "number at-desk" }, money(gpu_hours_lost)),
    h("td", { class: "number at-desk" }, ago(new Date(last_seen_at))),
  )
}

function none() {
  return h(
    "p",
    { class: "none quiet" },
    "A host appears here when findings of different jobs name it. One job\u2019s own culprits are on its page.",
  )
}

function showMore(onclick) {
  return h("div", { class: "more" }, h("button", { class: "button", type: "button", onclick }, "Show more"))
}
