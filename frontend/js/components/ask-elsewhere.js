/** The commands that ask the same question without this page. */

import { h } from "../dom.js"
import { cliCommand, curlCommand } from "./edit-words.js"
import { segments } from "./segments.js"

const WAYS = [["curl", "curl"], ["cli", "Command line"]]
const NOTES = {
  curl: "With a token of the scope read in PACELINE_TOKEN.",
  cli: "Of a trace in a file; steps are numbered as they are there.",
}

/** The card; `way` is the one that shows, `path` the API's of this question. */
export function askElsewhereCard({ edits, path, way, onWay }) {
  const command = way === "curl" ? curlCommand(location.origin, path, edits) : cliCommand(edits)
  return h(
    "section",
    { class: "card commands", "data-key": "commands", "aria-label": "Ask it elsewhere" },
    h("header", {}, h("h2", {}, "Ask it elsewhere"), segments("Ways to ask", WAYS, way, onWay), navigator.clipboard && h("button", { class: "text-button toggle", type: "button", onclick: (event) => copied(event.currentTarget, command, "Copy") }, "Copy")),
    h("pre", { tabindex: "0", "aria-label": "Command" }, edits.length ? command : "# Describe a change first."),
    h("p", { class: "remark" }, NOTES[way]),
  )
}

/** Copy a text, and say on the button whether that worked; it says `text` again after a while. */
export function copied(button, content, text) {
  navigator.clipboard.writeText(content).then(
    () => (button.textContent = "Copied"),
    () => (button.textContent = "Could not copy"),
  )
  setTimeout(() => (button.textContent = text), 2000)
}
