/** Hosts that were slow in several jobs: the list to drain from. */

import { hostHref } from "../../components/culprits.js"
import { term } from "../../components/definition.js"
import { panelFailed } from "../../components/notices.js"
import { headline } from "../../components/page-head.js"
import { stateIcon } from "../../components/state-icon.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { ago, clock, contained, counted, gpuHours, NOT_MEASURED, ratio, whole } from "../../lib/formatting.js"
import { money } from "../../lib/session.js"

const PAGE = 100
const DAYS = [7, 30, 90]
const USUAL_DAYS = 30
const SLOW_IN = ["All hosts", "Slow in a job", "Slow in two jobs or more"]

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

/** The period in days, and in how many jobs a host was slow at least. */
function choice() {
  const { days, jobs } = readAddress("days", "jobs")
  return {
    days: DAYS.includes(Number(days)) ? Number(days) : USUAL_DAYS,
    min_jobs: SLOW_IN[Number(jobs)] ? Number(jobs) : 0,
  }
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
      hostTables(answer.items),
      answer.next_cursor && showMore(acts.more),
    ),
  ]
}

/** Slow hosts in a table, and the others folded below it. */
function hostTables(hosts) {
  if (!hosts.length) return none()
  const slow = hosts.filter(({ jobs }) => jobs)
  const others = hosts.filter(({ jobs }) => !jobs)
  return [
    slow.length > 0 && table(slow),
    others.length > 0 &&
      h(
        "details",
        { class: "other-hosts", "data-key": "others" },
        h("summary", {}, `${counted(others.length, "host")} that no finding names`),
        table(others),
      ),
  ]
}

function sentence({ items, total, total_slow }) {
  const { days } = choice()
  const sub = `In the last ${days} days. A host is slow where a finding named it as the culprit.`
  if (!total && !items.length) return { sentence: "No job has named a host yet.", sub }
  if (!total_slow) return { sentence: `None of ${counted(total, "host")} was slower than its peers.`, sub }
  // A host whose jobs are no longer stored is slow, but none of those with jobs.
  const all = counted(Math.max(total, total_slow), "host")
  const were = total_slow === 1 ? "was slower than its" : "were slower than their"
  return { sentence: `${whole(total_slow)} of ${all} ${were} peers.`, sub }
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
        "Which hosts",
        SLOW_IN.map((text, number) => [number, text]),
        min_jobs,
        (value) => ask({ jobs: value === "0" ? null : value }),
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
    { class: "hosts" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "Host"),
        h("th", { scope: "col" }, "Found slow in"),
        h("th", { scope: "col", class: "number at-desk" }, "Workers now"),
        h("th", { scope: "col", class: "number" }, term("Worst slowdown", "worker_slowdown")),
        h("th", { scope: "col", class: "number at-desk" }, "Slow since"),
        h("th", { scope: "col", class: "number at-desk" }, "Last slow"),
        h("th", { scope: "col", class: "number" }, term("Lost, GPU-h", "gpu_hours_lost")),
        isPriced && h("th", { scope: "col", class: "number at-desk" }, "Cost"),
      ),
    ),
    h(
      "tbody",
      {},
      hosts.map((host) => row(host, isPriced)),
    ),
  )
}

function row(host, isPriced) {
  const { jobs, jobs_on_it, workers, worst_slowdown, slow_since_at, last_seen_at, gpu_hours_lost } = host
  const of = jobs_on_it < jobs ? counted(jobs, "job") : `${whole(jobs)} of ${counted(jobs_on_it, "job")}`
  return h(
    "tr",
    { "data-key": host.host },
    h("th", { scope: "row" }, h("a", { href: hostHref(host.host) }, contained(host.host))),
    h(
      "td",
      {},
      jobs
        ? h("span", { class: "state" }, stateIcon("straggling"), of)
        : h("span", { class: "quiet" }, `none of ${counted(jobs_on_it, "job")}`),
    ),
    h(
      "td",
      { class: "number at-desk" },
      workers === null ? h("span", { class: "quiet" }, "see the jobs") : whole(workers),
    ),
    h("td", { class: "number" }, jobs ? figureOf(worst_slowdown, ratio) : h("span", { class: "quiet" }, "n/a")),
    h("td", { class: "number at-desk" }, jobs ? clock(new Date(slow_since_at)) : ""),
    h("td", { class: "number at-desk" }, jobs ? ago(new Date(last_seen_at)) : ""),
    h("td", { class: "number" }, jobs ? gpuHours(gpu_hours_lost) : h("span", { class: "quiet" }, "none")),
    isPriced && h("td", { class: "number at-desk" }, jobs ? money(gpu_hours_lost) : ""),
  )
}

const figureOf = (value, words) => (value === null ? h("span", { class: "quiet" }, NOT_MEASURED) : words(value))

function none() {
  return h(
    "p",
    { class: "none quiet" },
    choice().min_jobs
      ? "No host was slow in so many jobs. Choose all hosts to see the others."
      : "Hosts appear here with the first data of a job whose workers report their host's name.",
  )
}

function showMore(onclick) {
  return h("div", { class: "more" }, h("button", { class: "button", type: "button", onclick }, "Show more"))
}
