/** Receivers of alerts: where they are, what they want, how they fare, and what may be done about it. */

import { h } from "../dom.js"
import { contained, whole } from "../words.js"
import { mark } from "./mark.js"
import { FORMATS, healthWords, placeWords, receiverName, receiverState, wantsWords } from "./receiver-words.js"
import { shownOnce } from "./shown-once.js"

const SIGNED = new Set(["standard", "alertmanager", "cloudevents"])
const COUNTS = [["delivered", "Told"], ["due", "Waiting"], ["failed", "Not told"], ["outdated", "Left out"]]

/**
 * The card.
 *
 * `doing` has `secret` just made, the id being `deleting`, `said` and `refused` by id, and where the
 * `form` is open: an id, "new" or null. `act` is null where the reader may change nothing.
 */
export function receiversCard({ endpoints, most, doing, form, act, onMore }) {
  return h(
    "section",
    { class: "card list receivers", "data-key": "receivers", "aria-label": "Receivers" },
    h("header", {}, h("h2", {}, "Receivers"), h("span", { class: "explanation" }, act ? "each is told of what it wants" : "changing them takes a token with the scope admin"), act && doing.form !== "new" && h("button", { class: "button toggle", type: "button", "data-key": "new", onclick: act.add }, "Add a receiver")),
    doing.secret && secretBox(doing.secret, act),
    doing.form === "new" && h("div", { class: "form-frame", "data-key": "form" }, form),
    endpoints.length ? h("ul", { class: "receiver-rows" }, endpoints.slice(0, most).map((endpoint) => row(endpoint, { doing, form, act }))) : doing.form !== "new" && nobody(),
    endpoints.length > most && h("button", { class: "button more", type: "button", onclick: onMore }, "Show more"),
  )
}

function secretBox({ name, secret, isNew }, act) {
  const words = isNew ? `${contained(name)} is added. This secret signs what it is sent, shown this once:` : `This is the new secret of ${contained(name)}, shown this once; the one before is good for a day:`
  return h("div", { class: "form-frame", "data-key": "secret" }, shownOnce({ words, text: secret, onDone: act.forget }))
}

function row(endpoint, { doing, form, act }) {
  // Who is told no address of one may do nothing with it.
  const { endpoint_id, format, address, is_of_settings, deliveries } = endpoint
  const [markName, word] = receiverState(endpoint)
  const said = doing.said?.id === endpoint_id && doing.said
  return h(
    "li",
    { class: "row", "data-key": endpoint_id },
    h("span", { class: "state" }, mark(markName), word),
    h(
      "div",
      { class: "about" },
      h("b", {}, receiverName(endpoint)),
      h("p", {}, FORMATS[format] ?? contained(format), address === null ? ", " : " at ", placeWords(endpoint)),
      h("p", { class: "quiet" }, wantsWords(endpoint), is_of_settings && ", for every project"),
      h("p", {}, healthWords(endpoint)),
    ),
    h("dl", { class: "counts" }, COUNTS.map(([key, text]) => h("div", {}, h("dt", {}, text), h("dd", { class: "number" }, whole(deliveries[key]))))),
    act && address !== null && h("div", { class: "acts" }, deeds(endpoint, doing, act)),
    said && h("p", { class: said.isRefused ? "refused" : "said", role: said.isRefused && "alert", "data-key": "said" }, said.text),
    doing.form === endpoint_id && form,
  )
}

function deeds(endpoint, doing, act) {
  const { endpoint_id, format, health, is_of_settings } = endpoint
  const deed = (key, text, words, onclick) => h("button", { class: "text-button", type: "button", "data-key": key, "aria-label": `${words} ${receiverName(endpoint)}`, onclick }, text)
  return [
    health.state === "disabled" && deed("enable", "Enable", "Enable", () => act.enable(endpoint)),
    health.state === "resting" && deed("enable", "Try now", "Try now to tell", () => act.tryNow(endpoint)),
    deed("test", "Send a test", "Send a test to", () => act.test(endpoint)),
    !is_of_settings && deed("edit", "Edit", "Edit", () => act.edit(endpoint)),
    !is_of_settings && SIGNED.has(format) && deed("rotate", "New secret", "Make a new secret for", () => act.rotate(endpoint)),
    !is_of_settings && (doing.deleting === endpoint_id ? deleting(endpoint, act) : deed("delete", "Delete", "Delete", () => act.set({ deleting: endpoint_id }))),
  ]
}

/** Deleting takes its waiting messages away, too, so it is asked for twice. */
function deleting(endpoint, act) {
  return [
    h("button", { class: "button is-risky", type: "button", "data-key": "delete", onclick: () => act.remove(endpoint) }, "Delete for good"),
    h("button", { class: "text-button", type: "button", "data-key": "no", onclick: () => act.set({ deleting: null }) }, "Keep"),
  ]
}

function nobody() {
  return h("div", { class: "panel-state none", "data-key": "nobody" }, mark("warning"), h("b", {}, "Nobody is told"), h("p", {}, "Alerts show on the page of alerts alone until there is a receiver: one added here, or that of PACELINE_WEBHOOK_URL."))
}
