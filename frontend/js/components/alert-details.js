/** One alert in full: what is known of it, by which labels it goes, and all that happened to it. */

import { h } from "../dom.js"
import { clock, contained, percentNumber, ratio, tidy, whole } from "../words.js"
import { KINDS } from "./alert-words.js"
import { gpuHours } from "./fleet-figures.js"
import { mark } from "./mark.js"

/** Details under a row; `transitions` are those of this alert, newest first, null while they come. */
export function alertDetails(alert, transitions) {
  return h(
    "div",
    { class: "alert-details", "data-key": "details" },
    h("dl", { class: "facts" }, facts(alert).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", {}, h("h3", {}, "Labels"), h("ul", { class: "labels" }, Object.entries(alert.labels).map(label))),
    h("div", {}, h("h3", {}, "What happened"), transitions ? transitionList(transitions) : h("p", { class: "quiet" }, "Asking\u2026"), messagesLink(alert.fingerprint)),
  )
}

/** The card of an alert that a link names and that is at rest. */
export function restingCard(fingerprint, transitions, onHide) {
  const [latest] = transitions
  const words = latest ? `${contained(latest.rule)} on ${contained(latest.job_id)} is at rest` : "There is no such alert"
  return h(
    "section",
    { class: "card resting", "data-key": "resting", "aria-label": "The alert of this link" },
    h("header", {}, h("h2", {}, words), h("span", { class: "explanation" }, fingerprint), h("button", { class: "text-button", type: "button", onclick: onHide }, "Hide")),
    latest ? [transitionList(transitions), messagesLink(fingerprint)] : h("p", { class: "quiet" }, "Alerts are forgotten some time after they have resolved, with the results of their job."),
  )
}

const messagesLink = (fingerprint) => h("p", { "data-key": "messages" }, h("a", { href: `/alerts/receivers?alert=${fingerprint}` }, "Messages about it"))

/** What happened to one alert, newest first. */
export function transitionList(transitions) {
  if (!transitions.length) return h("p", { class: "quiet" }, "Nothing is kept of it.")
  return h("ol", { class: "transitions" }, transitions.map(transition))
}

function transition({ event_id, kind, at, sentence, actor, reason }) {
  const [markName, word] = KINDS[kind] ?? ["not-analysed", kind]
  const by = [actor && `by ${contained(actor)}`, reason && contained(reason)].filter(Boolean).join(", ")
  return h("li", { "data-key": String(event_id) }, h("span", { class: "state" }, mark(markName), word), h("span", {}, clock(new Date(at)), by && ` ${by}`, h("small", {}, tidy(contained(sentence)))))
}

function facts({ slowdown, gpu_time_wasted, gpu_hours_lost_per_hour, num_gpus, since_step, blame, names, num_named, began_at, fingerprint }) {
  return [
    slowdown !== null && ["Slowdown", ratio(slowdown)],
    gpu_time_wasted !== null && ["GPU time lost", tidy(`${percentNumber(gpu_time_wasted)} %`)],
    gpu_hours_lost_per_hour !== null && ["GPU-hours lost per hour", gpuHours(gpu_hours_lost_per_hour)],
    num_gpus !== null && ["GPUs", whole(num_gpus)],
    since_step !== null && ["Since step", whole(since_step)],
    blame && ["What is to blame", tidy(contained(blame.sentence))],
    blame && ["How sure", tidy(`${percentNumber(blame.confidence, 0)} %`)],
    names.length > 0 && ["Silent", silent(names, num_named)],
    names.length === 0 && num_named > 0 && ["More like it", `${whole(num_named)}, each over the limit and without an alert of its own`],
    ["Holds since", clock(new Date(began_at))],
    ["Fingerprint", fingerprint],
  ].filter(Boolean)
}

function silent(names, number) {
  const more = number - names.length
  return names.map(contained).join("; ") + (more > 0 ? ` and ${whole(more)} more` : "")
}

const label = ([name, value]) => h("li", { "data-key": name }, h("b", {}, name), ` ${contained(value)}`)
