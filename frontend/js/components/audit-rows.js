/** Who did what and when, as rows of a table. */

import { h } from "../dom.js"
import { ago, clock, contained } from "../words.js"
import { alertHref } from "./alert-words.js"
import { matchersWords } from "./matchers.js"

const DEEDS = {
  "alert.acknowledge": "Acknowledged an alert",
  "alert.unacknowledge": "Took an acknowledgement back",
  "silence.create": "Silenced alerts",
  "silence.end": "Ended a silence",
  "maintenance.create": "Planned maintenance",
  "maintenance.end": "Ended maintenance",
  "rules.replace": "Changed the rules",
  "rules.reset": "Went back to the usual rules",
  "endpoint.create": "Added a receiver",
  "endpoint.change": "Changed a receiver",
  "endpoint.remove": "Deleted a receiver",
  "endpoint.enable": "Enabled a receiver",
  "endpoint.disable": "A receiver was disabled",
  "endpoint.rotate": "Made a new secret for a receiver",
  "endpoint.test": "Sent a test message",
  "delivery.replay": "Sent a message again",
  "token.create": "Made a token",
  "token.revoke": "Revoked a token",
  "retention.set": "Set how long things are kept",
  "recording.set": "Chose which steps a job records",
  "scores.add": "Added scores of another tool",
  "cordon.would": "Would have asked for a cordon",
  "cordon.refused": "A cordon that the operator does not allow",
  "cordon.ask": "Asked for a cordon",
  "cordon.done": "A cordon was done",
  "cordon.failed": "A cordon failed",
}

/** Kinds of things that deeds are done to, as the API and as people call them. */
export const OBJECTS = [["", "All"], ["alert", "Alerts"], ["silence", "Silences"], ["maintenance", "Maintenance"], ["rules", "Rules"], ["endpoint", "Receivers"], ["delivery", "Messages"], ["token", "Tokens"], ["retention", "Retention"], ["recording", "Recording"], ["scores", "Scores"], ["job", "Cordons"]]

/** The table of a page of deeds. */
export function auditTable(deeds) {
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ["What", "Who", "When"].map((text) => h("th", { scope: "col", class: text === "When" ? "number" : null }, text)))),
    h("tbody", {}, deeds.map(row)),
  )
}

function row({ audit_id, at, actor, action, object_kind, object_id, detail }) {
  const when = new Date(at)
  return h(
    "tr",
    { "data-key": String(audit_id) },
    h("th", { scope: "row" }, DEEDS[action] ?? contained(action), " ", object(object_kind, object_id), h("small", {}, detailWords(detail))),
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
  return Object.entries(changes).map(([name, change]) => `${name.replaceAll("_", " ")} ${changeWords(name, change)}`).join(", ")
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
