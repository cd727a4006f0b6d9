/** Definitions of figures and causes, from docs/glossary.md: shown on hover, focus or tap beside what they define. */

import { h } from "../lib/dom.js"
import { tidy } from "../lib/formatting.js"

const ID = "definition"
const GAP_PX = 8
const WIDTH_PX = 360

/** The glossary's key of each label of a strip of figures; a test compares them with the strips and the glossary. */
const LABELS = {
  Slowdown: "slowdown",
  "GPU time wasted": "gpu_time_wasted",
  "Lost since onset": "gpu_hours_lost",
  "Lost in these steps": "gpu_hours_lost",
  "Lost now": "lost now",
  "Workers sending": "workers sending",
  "Explained by lengths": "share_of_loss",
  "Won back by worker": "m_w",
  "Won back by last stage": "m_s",
  "Won back by stage": "stage_share",
  Fidelity: "fidelity.discrepancy",
  "Clock residual": "clocks.residual_ms",
  "If only this worker were slow": "worker_slowdown",
  "Rank by slowdown": "rank by slowdown",
  "Slowdown of the job": "slowdown",
  "Launch delay": "launch_delay.by_worker",
  "Others waited for that": "launch_delay.others_waited",
  "Dropped by its recorder": "dropped operations",
  "Step time": "step_time_s.recorded",
  Lost: "gpu_hours_lost",
  "Speed-up": "speed_up",
  "Slowdown left": "slowdown",
  Saved: "gpu_hours_saved",
  "Operations changed": "operation",
  Skipped: "skipped steps",
  "Silent ranks": "silent rank",
  "Last step": "last step",
  Jobs: "job",
  "GPUs watched": "gpus watched",
  "Lost today": "gpu_hours_lost",
  "Being lost now": "being lost now",
  "Alerts firing": "firing",
  "Canary last found": "canary",
  "Consumers alive": "consumer",
  "Batches in the queue": "event queue",
  "Dead-man's switches": "dead-man's switch",
  Disk: "disk of the service",
}

const box = h("div", { id: ID, class: "definition", role: "tooltip", hidden: true })
let asked = null
let shownFor = null

/** The attributes of an element that a definition belongs to; it has to be able to take the focus. */
export const definedBy = (key) => ({ "data-define": key, "aria-describedby": ID })

/** A word with its definition: a button that does nothing else. */
export function term(words, key) {
  return h("button", { class: "term", type: "button", ...definedBy(key) }, words)
}

/** The label of a figure with its definition; only the label where the glossary has none. */
export function labelled(label) {
  const key = LABELS[label] ?? LABELS[label.replace(/ \d+$/, "")]
  return key ? term(label, key) : label
}

/** Show definitions from now on; they are requested with the first one. */
export function beginDefinitions() {
  document.body.append(box)
  document.addEventListener("pointerover", onPointer)
  document.addEventListener("focusin", ({ target }) => target.matches("[data-define]:focus-visible") && show(target))
  document.addEventListener("focusout", hide)
  document.addEventListener("click", onClick)
  document.addEventListener("keydown", onKey, { capture: true })
  document.addEventListener("scroll", hide, { passive: true })
}

/** All definitions by their keys; none where the server does not answer, which is asked again the next time. */
function definitions() {
  asked ??= fetch("/docs/definitions.json").then((answer) => answer.json())
  return asked.catch(() => {
    asked = null
    return {}
  })
}

/** The pointer may move onto the definition itself: it stays until the pointer is elsewhere. */
function onPointer({ target, pointerType }) {
  if (pointerType === "touch" || box.contains(target)) return
  const defined = target.closest("[data-define]")
  if (defined) show(defined)
  else if (shownFor && !shownFor.matches(":focus-visible")) hide()
}

/** A tap shows it, and the next one anywhere hides it. */
function onClick({ target }) {
  const own = target.closest(".term")
  if (own && own !== shownFor) show(own)
  else if (!box.contains(target) && !own?.matches(":hover")) hide()
}

/** Esc closes the definition, and nothing else at the same time. */
function onKey(event) {
  if (event.key !== "Escape" || !shownFor) return
  event.stopPropagation()
  hide()
}

async function show(node) {
  if (node === shownFor) return
  hide()
  shownFor = node
  const found = (await definitions())[node.dataset.define]
  // The reader may have moved on meanwhile.
  if (!found || shownFor !== node) return
  box.replaceChildren(
    // In the words of the page where these are all that the button has.
    h("b", {}, node.matches(".term") ? node.textContent : found.name, found.unit && h("span", {}, ` (${found.unit})`)),
    h("p", {}, tidy(sentence(found.text))),
    ...(found.limits
      ? [h("p", { class: "quiet" }, tidy(`Do not trust it when: ${sentence(found.limits, false)}`))]
      : []),
  )
  box.hidden = false
  placeBeside(node.getBoundingClientRect())
}

function hide() {
  shownFor = null
  box.hidden = true
  box.replaceChildren()
}

/** Under the word, or above it where the window ends; never outside of the window. */
function placeBeside({ left, top, bottom }) {
  box.style.maxWidth = `${Math.min(WIDTH_PX, innerWidth - 2 * GAP_PX)}px`
  const { width, height } = box.getBoundingClientRect()
  const isUnder = bottom + GAP_PX + height <= innerHeight || top < height + GAP_PX
  box.style.left = `${Math.max(GAP_PX, Math.min(left, innerWidth - width - GAP_PX))}px`
  box.style.top = `${isUnder ? bottom : top - height}px`
}

function sentence(text, isFirst = true) {
  const words = isFirst ? text.charAt(0).toUpperCase() + text.slice(1) : text
  return /[.:?]$/.test(words) ? words : `${words}.`
}
