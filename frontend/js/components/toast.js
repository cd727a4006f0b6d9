/** Short notices at the lower edge with a button that takes the change back. */

import { announce, h, patch } from "../lib/dom.js"

// Long enough to read, reach and press Undo by keyboard; it does not run while the reader is there.
const SHOWN_MS = 20_000

const shown = new Map()
let region = null

/**
 * Show `sentence` and, with `onUndo`, a button "Undo"; it stays for 20 s or until dismissed.
 *
 * Ctrl+Z or Cmd+Z outside of text fields undoes the newest one.
 */
export function toast(sentence, onUndo = null) {
  const key = String(performance.now())
  shown.set(key, { sentence, onUndo, timer: null })
  announce(onUndo ? `${sentence} Undo with Control Z.` : sentence)
  draw()
  wait()
}

function dismiss(key) {
  clearTimeout(shown.get(key)?.timer)
  shown.delete(key)
  draw()
}

async function undo(key) {
  const { onUndo } = shown.get(key)
  dismiss(key)
  await onUndo()
}

function draw() {
  region ??= made()
  patch(
    region,
    [...shown].map(([key, { sentence, onUndo }]) =>
      h(
        "div",
        { class: "toast", "data-key": key },
        h("span", {}, sentence),
        onUndo && h("button", { class: "text-button", type: "button", onclick: () => undo(key) }, "Undo"),
        h(
          "button",
          { class: "icon-button", type: "button", "aria-label": "Dismiss", onclick: () => dismiss(key) },
          "\u00d7",
        ),
      ),
    ),
  )
}

function made() {
  const node = h("div", { class: "toasts", role: "region", "aria-label": "Notices" })
  for (const event of ["pointerenter", "focusin"]) node.addEventListener(event, hold)
  for (const event of ["pointerleave", "focusout"]) node.addEventListener(event, wait)
  document.body.append(node)
  return node
}

function hold() {
  for (const each of shown.values()) {
    clearTimeout(each.timer)
    each.timer = null
  }
}

function wait() {
  if (region.matches(":hover") || region.contains(document.activeElement)) return
  for (const [key, each] of shown) each.timer ??= setTimeout(() => dismiss(key), SHOWN_MS)
}

document.addEventListener("keydown", (event) => {
  const isUndo = event.key === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey
  if (!isUndo || event.target.closest("input, textarea, select, [contenteditable]")) return
  const newest = [...shown.keys()].findLast((key) => shown.get(key).onUndo)
  if (newest === undefined) return
  event.preventDefault()
  undo(newest)
})
