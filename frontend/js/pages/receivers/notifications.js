/** Notifications to receivers: delivered, pending, failed or skipped, with every delivery attempt. */

import {
  attemptWords,
  notificationIcon,
  notificationKind,
  notificationState,
  receiverName,
  receiverOf,
} from "../../components/alerts/receiver-words.js"
import { alertHref, isFingerprint } from "../../components/alerts/words.js"
import { segments } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { ago, clock, contained, seconds } from "../../lib/formatting.js"

const CHOICES = [
  ["", "All"],
  ["due", "Pending"],
  ["delivered", "Delivered"],
  ["failed", "Failed"],
]

/**
 * The card.
 *
 * `chosen` has the `state`, the `endpoint`, the `alert` and the `message` in the address, `one` that
 * notification with its attempts. `act` has `choose(changes)`, and `replay(message)` where the
 * reader may; `refused` is `{id, text}`; `onMore` shows more, null where all are shown.
 */
export function notificationsCard({ items, chosen, one, endpoints, act, refused, onMore }) {
  const pick = h(
    "select",
    { class: "field", "aria-label": "Receiver", onchange: (event) => act.choose({ endpoint: event.target.value }) },
    [["", "All receivers"], ...endpoints.map((endpoint) => [endpoint.receiver_id, receiverName(endpoint)])].map(
      ([value, text]) => h("option", { value, selected: value === (chosen.endpoint ?? "") }, text),
    ),
  )
  return h(
    "section",
    { class: "card messages", "data-key": "messages", "aria-label": "Notifications" },
    h(
      "header",
      {},
      h("h2", {}, "Notifications"),
      h("span", { class: "explanation" }, "retried until delivered"),
      segments("State", CHOICES, chosen.state ?? "", (state) => act.choose({ state })),
      pick,
    ),
    isFingerprint(chosen.alert) && aboutOne(chosen.alert, act),
    items.length
      ? h(
          "ol",
          { class: "message-rows" },
          items.map((message) =>
            row(message, {
              one: message.delivery_id === chosen.message ? one : null,
              isChosen: message.delivery_id === chosen.message,
              act,
              refused,
            }),
          ),
        )
      : h(
          "p",
          { class: "none" },
          chosen.state || chosen.endpoint || isFingerprint(chosen.alert)
            ? "No notification matches the filter."
            : "No notifications yet.",
        ),
    onMore && h("button", { class: "button more", type: "button", onclick: onMore }, "Show more"),
  )
}

/** The remark of a list that is limited to one alert, with the way to all. */
function aboutOne(fingerprint, act) {
  return h(
    "p",
    { class: "explanation", "data-key": "about-one" },
    "Only of ",
    h("a", { href: alertHref(fingerprint) }, `the alert ${contained(fingerprint)}`),
    ". ",
    h(
      "button",
      { class: "text-button", type: "button", "data-key": "all", onclick: () => act.choose({ alert: null }) },
      "Show all",
    ),
  )
}

function row(message, { one, isChosen, act, refused }) {
  const { delivery_id, job_id, rule, detail, next_at, created_at, done_at } = message
  const at = new Date(done_at ?? created_at)
  const next = next_at && new Date(next_at) > new Date() ? `next attempt at ${clock(new Date(next_at))}` : ""
  const which = `notification to ${receiverOf(message)} of ${clock(new Date(created_at))}`
  return h(
    "li",
    { class: isChosen ? "row is-chosen" : "row", "data-key": delivery_id },
    h("span", { class: "state" }, stateIcon(notificationIcon(message)), h("span", {}, notificationState(message))),
    h(
      "span",
      { class: "job" },
      job_id ? h("a", { href: `/jobs/${encodeURIComponent(job_id)}` }, contained(job_id)) : "No job",
      h("small", {}, [rule && contained(rule), notificationKind(message)].filter(Boolean).join(", ")),
    ),
    h("span", { class: "where" }, receiverOf(message), h("small", {}, delivery_id)),
    h("span", { class: "detail" }, detail ? contained(detail) : "", next && h("small", {}, next)),
    h("span", { class: "at" }, ago(at), h("small", {}, clock(at))),
    h(
      "span",
      { class: "acts" },
      h(
        "button",
        {
          class: "text-button",
          type: "button",
          "data-key": "attempts",
          "aria-expanded": String(isChosen),
          "aria-label": `Attempts of the ${which}`,
          onclick: () => act.choose({ message: isChosen ? null : delivery_id }),
        },
        isChosen ? "Hide" : "Attempts",
      ),
      act.replay &&
        message.state !== "due" &&
        message.kind !== "test" &&
        h(
          "button",
          {
            class: "text-button",
            type: "button",
            "data-key": "replay",
            "aria-label": `Send again the ${which}`,
            onclick: () => act.replay(message),
          },
          "Send again",
        ),
    ),
    refused?.id === delivery_id && h("p", { class: "refused", role: "alert", "data-key": "refused" }, refused.text),
    isChosen && one && attempts(one),
  )
}

function attempts({ attempts: tried, job_id }) {
  return h(
    "div",
    { class: "attempts", "data-key": "tried" },
    tried.length ? h("ol", {}, tried.map(attempt)) : h("p", { class: "quiet" }, "No attempt has ended yet."),
    job_id &&
      h(
        "p",
        {},
        h(
          "a",
          { href: `/alerts?${new URLSearchParams({ find: job_id, q: job_id })}` },
          `Alerts of ${contained(job_id)}`,
        ),
      ),
  )
}

function attempt({ attempt: number, at, took_s, ...met }) {
  return h(
    "li",
    {},
    h("b", {}, `Attempt ${number}`),
    h("span", {}, clock(new Date(at))),
    h("span", { class: "number" }, seconds(took_s)),
    h("span", {}, attemptWords(met)),
  )
}
