/** The audit log: who acknowledged, silenced or changed what, and when. */

import { matchersWords } from "../../components/alerts/matchers.js"
import { alertHref } from "../../components/alerts/words.js"
import { panelFailed } from "../../components/notices.js"
import { pageTop } from "../../components/page-head.js"
import { readAddress, updateAddress } from "../../lib/address.js"
import { getJson } from "../../lib/api.js"
import { h, patch } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { ago, clock, contained } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const PAGE = 50
const MOST = 500
const TYPING_MS = 250

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { answer: null, error: null, most: PAGE, left: false, asked: 0 }
  const draw = () => page.left || patch(root, content(page, act))
  const refresh = async () => {
    if (!may("admin")) return draw()
    const asked = ++page.asked
    const answer = await load(page.most).catch((error) => error)
    if (page.left || asked !== page.asked) return
    if (answer.status === 401) return onRefused()
    Object.assign(page, answer instanceof Error ? { error: answer } : { answer, error: null })
    draw()
  }
  let timer = null
  const act = {
    refresh,
    choose: (changes) => {
      updateAddress(changes)
      page.most = PAGE
      refresh()
    },
    type: (event) => {
      const { value } = event.target
      clearTimeout(timer)
      timer = setTimeout(() => act.choose({ actor: value.trim() }), TYPING_MS)
    },
    more: () => {
      page.most = Math.min(MOST, page.most + PAGE)
      refresh()
    },
  }

  setSubject({ kind: "settings" })
  refresh()
  const stop = onChange(refresh, "alert")
  return () => {
    page.left = true
    clearTimeout(timer)
    stop()
  }
}

function load(limit) {
  const { object, actor } = readAddress("object", "actor")
  return getJson(
    `/audit?${new URLSearchParams({ limit, ...(object && { object_kind: object }), ...(actor && { actor }) })}`,
  )
}

function content({ answer, error, most }, act) {
  const top = pageTop("Settings", {
    sentence: "Audit",
    sub: "Who acknowledged, silenced or changed what. Stored as long as results are.",
  })
  if (!may("admin")) return [top, forbidden()]
  return [
    top,
    error && panelFailed("Could not load the audit", error, act.refresh),
    answer && entriesCard(answer, most, act),
  ]
}

function forbidden() {
  return h(
    "section",
    { class: "card panel-state", "data-key": "forbidden" },
    h("b", {}, "Not shown with your token"),
    h("p", {}, "Only a token with the scope admin may read the audit log. Sign in with one."),
  )
}

function entriesCard({ items, next_cursor }, most, act) {
  const { object, actor } = readAddress("object", "actor")
  return h(
    "section",
    { class: "card ledger", "data-key": "entries", "aria-label": "Audit log" },
    h(
      "div",
      { class: "fleet-filters" },
      h(
        "select",
        {
          class: "field",
          "aria-label": "Kind of object",
          onchange: (event) => act.choose({ object: event.target.value }),
        },
        OBJECTS.map(([value, text]) => h("option", { value, selected: value === (object ?? "") }, text)),
      ),
      h("input", {
        class: "field",
        type: "search",
        "aria-label": "Who",
        placeholder: "Exact name, as below",
        value: actor ?? "",
        maxlength: 300,
        oninput: act.type,
      }),
    ),
    items.length
      ? auditTable(items)
      : h("p", { class: "none quiet" }, object || actor ? "No entry matches the filter." : "No changes yet."),
    next_cursor &&
      most < MOST &&
      h("div", { class: "more" }, h("button", { class: "button", type: "button", onclick: act.more }, "Show more")),
  )
}

const ACTIONS = {
  "alert.acknowledge": "Acknowledged an alert",
  "alert.unacknowledge": "Removed an acknowledgement",
  "alert.assign": "Assigned an alert",
  "alert.unassign": "Removed the assignee of an alert",
  "alert.note": "Added a note to an alert",
  "silence.create": "Silenced alerts",
  "silence.end": "Ended a silence",
  "maintenance.create": "Planned maintenance",
  "maintenance.end": "Ended maintenance",
  "rules.replace": "Changed the rules",
  "rules.reset": "Reset the rules to the defaults",
  "endpoint.create": "Added a receiver",
  "endpoint.change": "Changed a receiver",
  "endpoint.remove": "Deleted a receiver",
  "endpoint.enable": "Enabled a receiver",
  "endpoint.disable": "Disabled a receiver",
  "endpoint.rotate": "Rotated the secret of a receiver",
  "endpoint.test": "Sent a test notification",
  "delivery.replay": "Sent a notification again",
  "token.create": "Created a token",
  "token.revoke": "Revoked a token",
  "retention.set": "Changed the retention",
  "scores.add": "Added scores of another tool", // of 0.1.0
  "recording.set": "Changed which steps a job records",
  "job.archive": "Archived a job",
  "job.unarchive": "Unarchived a job",
  "job.delete": "Deleted a job",
  "job.restore": "Restored a job",
  "job.edit": "Changed owner or tags of a job",
  "view.create": "Saved a view",
  "view.delete": "Deleted a saved view",
  "annotation.add": "Added an annotation",
  "annotation.delete": "Deleted an annotation",
  "share.create": "Made a share link",
  "share.revoke": "Revoked a share link",
  "cordon.would": "Would have requested a cordon",
  "cordon.refused": "Cordon refused: not allowed by the operator",
  "cordon.ask": "Requested a cordon",
  "cordon.done": "Cordon done",
  "cordon.failed": "Cordon failed",
}

/** Kinds of objects, by their names in the API and on the page. */
export const OBJECTS = [
  ["", "All"],
  ["alert", "Alerts"],
  ["silence", "Silences"],
  ["maintenance", "Maintenance"],
  ["rules", "Rules"],
  ["endpoint", "Receivers"],
  ["delivery", "Notifications"],
  ["token", "Tokens"],
  ["retention", "Retention"],
  ["recording", "Recording"],
  ["job", "Jobs"],
  ["view", "Saved views"],
  ["annotation", "Annotations"],
  ["share", "Share links"],
]

/** The table of one page of entries. */
export function auditTable(entries) {
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["What", "Who", "When"].map((text) =>
          h("th", { scope: "col", class: text === "When" ? "number" : null }, text),
        ),
      ),
    ),
    h("tbody", {}, entries.map(row)),
  )
}

function row({ audit_id, at, actor, action, object_kind, object_id, detail }) {
  const when = new Date(at)
  return h(
    "tr",
    { "data-key": String(audit_id) },
    h(
      "th",
      { scope: "row" },
      ACTIONS[action] ?? contained(action),
      " ",
      object(object_kind, object_id),
      h("small", {}, detailWords(detail)),
    ),
    h("td", {}, contained(actor)),
    h("td", { class: "number" }, ago(when), h("small", {}, clock(when))),
  )
}

function object(kind, id) {
  if (kind === "alert") return h("a", { href: alertHref(id) }, id)
  return kind === "rules" || kind === "retention" ? null : h("span", { class: "quiet" }, contained(id))
}

/** What else is known of it; what is empty says nothing. */
function detailWords(detail) {
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length))
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${contained(valueWords(name, value))}`)
    .join("; ")
}

function valueWords(name, value) {
  if (name === "changes") return changesWords(value)
  if (name === "sha256") return `${value.old} before, ${value.new} now`
  if (name.endsWith("_at") && typeof value === "string") return clock(new Date(value))
  if (name === "matchers" && Array.isArray(value)) return matchersWords(value)
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join(", ")
  return typeof value === "string" ? value : JSON.stringify(value)
}

/** "min severity from info to critical, secrets changed"; of rules with the name of each before. */
function changesWords(changes) {
  return Object.entries(changes)
    .map(([name, change]) => `${name.replaceAll("_", " ")} ${changeWords(name, change)}`)
    .join(", ")
}

function changeWords(name, change) {
  if (typeof change === "string") return change
  if (!("old" in change && "new" in change)) return `(${changesWords(change)})`
  return `from ${sideWords(name, change.old)} to ${sideWords(name, change.new)}`
}

function sideWords(name, value) {
  const isNothing = value === null || value === "" || (typeof value === "object" && !Object.keys(value).length)
  return isNothing ? "nothing" : valueWords(name, value)
}
