/** Buttons that several pages have: a choice of a few words, copying to the clipboard, a secret shown once. */

import { announce, h } from "../lib/dom.js"

// How long a button says that it has copied.
const SAYS_FOR_MS = 2000

/** A row of buttons, one of them pressed; `choices` are `[value, text]`, `onPick(value)` gets the newly pressed one. */
export function segments(label, choices, picked, onPick) {
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": label },
    choices.map(([value, text]) =>
      h(
        "button",
        {
          type: "button",
          "data-key": value || "all",
          "aria-pressed": String(value === picked),
          onclick: () => value !== picked && onPick(value),
        },
        text,
      ),
    ),
  )
}

/** A secret that is shown only once, with `words` above it; `onDone` closes the box. */
export function shownOnce({ words, text, onDone }) {
  return h(
    "div",
    { class: "shown-once", role: "status", "data-key": "shown-once" },
    h("b", {}, words),
    h("pre", { class: "code" }, h("code", {}, text)),
    h(
      "div",
      { class: "acts" },
      copyButton(() => text, { class: "button is-primary" }),
      h("button", { class: "button", type: "button", onclick: onDone }, "Done"),
    ),
  )
}

/**
 * A button that copies `text()` and shows the result for a while; null where the browser has no clipboard.
 *
 * `attributes` are those of the button, `label` its text.
 */
export function copyButton(text, attributes, label = "Copy") {
  if (!navigator.clipboard) return null
  const copy = async ({ currentTarget: button }) => {
    const say = (words) => {
      button.textContent = words
    }
    await navigator.clipboard.writeText(text()).then(
      () => say("Copied"),
      () => say("Could not copy"),
    )
    setTimeout(() => say(label), SAYS_FOR_MS)
  }
  return h("button", { type: "button", ...attributes, onclick: copy }, label)
}

/**
 * A button that copies the text of `nodeOf(button)`.
 *
 * Without a clipboard, as on a page without TLS, it selects the text, ready for Ctrl+C.
 */
export function copyOrSelectButton(nodeOf, attributes, label = "Copy") {
  const copy = async ({ currentTarget: button }) => {
    const node = nodeOf(button)
    const say = (words) => {
      button.textContent = words
    }
    const isCopied = await copied(node.textContent)
    if (!isCopied) getSelection().selectAllChildren(node)
    say(isCopied ? "Copied" : "Selected")
    announce(isCopied ? "Copied." : "Selected: copy it with Ctrl+C.")
    setTimeout(() => say(label), SAYS_FOR_MS)
  }
  return h("button", { type: "button", ...attributes, onclick: copy }, label)
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}
