/** The receivers: address, which alerts they are notified of, state, and actions. */

import {
  FORMATS,
  healthWords,
  placeWords,
  receiverName,
  receiverState,
  SIGNED,
  wantsWords,
} from "../../components/alerts/receiver-words.js"
import { shownOnce } from "../../components/buttons.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { contained, whole } from "../../lib/formatting.js"

const COUNTS = [
  ["delivered", "Delivered"],
  ["due", "Pending"],
  ["failed", "Failed"],
  ["outdated", "Skipped"],
]

/**
 * The card.
 *
 * `state` has the new `secret`, the id being `deleting`, `said` and `refused` by id, and where the
 * `form` is open: an id, "new" or null. `act` is null where the reader may change nothing.
 */
export function receiversCard({ endpoints, most, state, form, act, onMore }) {
  return h(
    "section",
    { class: "card list receivers", "data-key": "receivers", "aria-label": "Receivers" },
    h(
      "header",
      {},
      h("h2", {}, "Receivers"),
      h(
        "span",
        { class: "explanation" },
        act ? "each with its own filter" : "changes need a token with the scope admin",
      ),
      act &&
        state.form !== "new" &&
        h("button", { class: "button toggle", type: "button", "data-key": "new", onclick: act.add }, "Add a receiver"),
    ),
    state.secret && secretBox(state.secret, act),
    state.form === "new" && h("div", { class: "form-frame", "data-key": "form" }, form),
    endpoints.length
      ? h(
          "ul",
          { class: "receiver-rows" },
          endpoints.slice(0, most).map((endpoint) => row(endpoint, { state, form, act })),
        )
      : state.form !== "new" && noReceivers(),
    endpoints.length > most && h("button", { class: "button more", type: "button", onclick: onMore }, "Show more"),
  )
}

function secretBox({ name, secret, isNew }, act) {
  const words = isNew
    ? `${contained(name)} is added. Signing secret, shown only once:`
    : `New signing secret of ${contained(name)}, shown only once. The old one stays valid for a day:`
  return h("div", { class: "form-frame", "data-key": "secret" }, shownOnce({ words, text: secret, onDone: act.forget }))
}

function row(endpoint, { state, form, act }) {
  // A receiver whose address is hidden from the reader has no actions.
  const { receiver_id, format, address, is_of_settings, deliveries } = endpoint
  const [markName, word] = receiverState(endpoint)
  const said = state.said?.id === receiver_id && state.said
  return h(
    "li",
    { class: "row", "data-key": receiver_id },
    h("span", { class: "state" }, stateIcon(markName), word),
    h(
      "div",
      { class: "about" },
      h("b", {}, receiverName(endpoint)),
      h("p", {}, FORMATS[format] ?? contained(format), address === null ? ", " : " at ", placeWords(endpoint)),
      h("p", { class: "quiet" }, wantsWords(endpoint), is_of_settings && ", for every project"),
      h("p", {}, healthWords(endpoint)),
    ),
    h(
      "dl",
      { class: "counts" },
      COUNTS.map(([key, text]) =>
        h("div", {}, h("dt", {}, text), h("dd", { class: "number" }, whole(deliveries[key]))),
      ),
    ),
    act && address !== null && h("div", { class: "acts" }, actions(endpoint, state, act)),
    said &&
      h(
        "p",
        { class: said.isRefused ? "refused" : "said", role: said.isRefused && "alert", "data-key": "said" },
        said.text,
      ),
    state.form === receiver_id && form,
  )
}

function actions(endpoint, state, act) {
  const { receiver_id, format, health, is_of_settings } = endpoint
  const action = (key, text, words, onclick) =>
    h(
      "button",
      {
        class: "text-button",
        type: "button",
        "data-key": key,
        "aria-label": `${words} ${receiverName(endpoint)}`,
        onclick,
      },
      text,
    )
  return [
    health.state === "disabled" && action("enable", "Enable", "Enable", () => act.enable(endpoint)),
    health.state === "resting" && action("enable", "Retry now", "Retry now", () => act.tryNow(endpoint)),
    action("test", "Send a test", "Send a test to", () => act.test(endpoint)),
    !is_of_settings && action("edit", "Edit", "Edit", () => act.edit(endpoint)),
    !is_of_settings &&
      SIGNED.has(format) &&
      action("rotate", "New secret", "Make a new secret for", () => act.rotate(endpoint)),
    !is_of_settings &&
      (state.deleting === receiver_id
        ? deleting(endpoint, act)
        : action("delete", "Delete", "Delete", () => act.set({ deleting: receiver_id }))),
  ]
}

/** Deleting also drops pending notifications, so it needs a confirmation. */
function deleting(endpoint, act) {
  return [
    h(
      "button",
      { class: "button is-risky", type: "button", "data-key": "delete", onclick: () => act.remove(endpoint) },
      "Delete for good",
    ),
    h(
      "button",
      { class: "text-button", type: "button", "data-key": "no", onclick: () => act.set({ deleting: null }) },
      "Keep",
    ),
  ]
}

function noReceivers() {
  return h(
    "div",
    { class: "panel-state none", "data-key": "no-receivers" },
    stateIcon("warning"),
    h("b", {}, "No receivers"),
    h("p", {}, "Alerts show on the alerts page only until a receiver is added here or PACELINE_WEBHOOK_URL is set."),
  )
}
