/** Recipes: what to set for the usual receivers, ready to copy, each of which fills in the form. */

import { copyOrSelectButton } from "../../components/buttons.js"
import { h } from "../../lib/dom.js"

const LOCAL_SETTINGS = `PACELINE_WEBHOOK_ALLOW=127.0.0.0/8
PACELINE_WEBHOOK_ALLOW_HTTP=true
PACELINE_WEBHOOK_PORTS=80,443,8443,9000`

const LOCAL_RECEIVER = `from http.server import BaseHTTPRequestHandler, HTTPServer

class Hook(BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.rfile.read(int(self.headers["content-length"])).decode())
        self.send_response(204)
        self.end_headers()

HTTPServer(("127.0.0.1", 9000), Hook).serve_forever()`

const ALERTMANAGER_SETTINGS = `PACELINE_WEBHOOK_ALLOW=10.2.0.0/16
PACELINE_WEBHOOK_ALLOW_HTTP=true
PACELINE_WEBHOOK_PORTS=80,443,8443,9093`

/** `fills` is what the form begins with; `parts` are `[what it is, text to copy]`. */
const RECIPES = [
  {
    key: "slack",
    title: "Slack",
    text: "In Slack, add an incoming webhook to the channel. Its address is the secret: it is never shown here again.",
    parts: [["Address", "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"]],
    fills: { name: "Slack", format: "slack" },
  },
  {
    key: "pagerduty",
    title: "PagerDuty",
    text: "On the service, add an Events API v2 integration: its key is the routing key. The address stays empty.",
    parts: [["Address, if the account is in the EU", "https://events.eu.pagerduty.com/v2/enqueue"]],
    fills: { name: "PagerDuty", format: "pagerduty" },
  },
  {
    key: "alertmanager",
    title: "Alertmanager",
    text: "Its base address: alerts are pushed there. In a private network the operator also sets:",
    parts: [
      ["Address", "http://alertmanager.internal:9093"],
      ["Settings of Paceline, then a restart", ALERTMANAGER_SETTINGS],
    ],
    fills: { name: "Alertmanager", format: "alertmanager-push" },
  },
  {
    key: "on-call-services",
    title: "Opsgenie, Grafana OnCall and others",
    text: "Add their integration for Alertmanager webhooks. Its key is in the address or in a header.",
    parts: [["Extra header, if they want one", "Authorization: GenieKey 00000000-0000-0000-0000-000000000000"]],
    fills: { name: "On-call service", format: "alertmanager" },
  },
  {
    key: "local",
    title: "A webhook on this machine",
    text: "Local addresses, http:// and other ports are off until the operator allows all three.",
    parts: [
      ["Settings of Paceline, then a restart", LOCAL_SETTINGS],
      ["A receiver that prints what comes, for Python", LOCAL_RECEIVER],
    ],
    fills: { name: "Local webhook", format: "standard", url: "http://127.0.0.1:9000/hook" },
  },
]

/** The card; `act.use(fills)` opens the form, null where the reader may change nothing. */
export function recipesCard(act) {
  return h(
    "section",
    { class: "card recipes", "data-key": "recipes", "aria-label": "Recipes" },
    h("header", {}, h("h2", {}, "Recipes"), h("span", { class: "explanation" }, "what to set for the usual receivers")),
    RECIPES.map((recipe) => recipeRow(recipe, act)),
  )
}

function recipeRow({ key, title, text, parts, fills }, act) {
  return h(
    "details",
    { class: "recipe", "data-key": key },
    h("summary", {}, title),
    h("p", {}, text),
    parts.map(([what, code], at) => copyable(what, code, `${key}-${at}`)),
    act &&
      h(
        "button",
        { class: "button", type: "button", "data-key": "use", onclick: () => act.use(fills) },
        "Fill in the form",
      ),
  )
}

function copyable(what, code, key) {
  const nodeOf = (button) => button.closest(".copyable").querySelector("code")
  return h(
    "div",
    { class: "copyable", "data-key": key },
    h(
      "div",
      {},
      h("span", { class: "quiet" }, what),
      copyOrSelectButton(nodeOf, { class: "text-button", "aria-label": `Copy: ${what}` }),
    ),
    h("pre", { class: "code", tabindex: "0" }, h("code", {}, code)),
  )
}
