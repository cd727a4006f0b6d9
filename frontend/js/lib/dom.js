/** Building and updating the document; text is always text, never markup. */

const SVG = "http://www.w3.org/2000/svg"
const SVG_TAGS = new Set(["svg", "path", "circle", "line", "text", "rect", "g"])
const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown"]

/** An element: `h("a", { class: "row", href, onclick }, ...children)`; null children are left out. */
export function h(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue
    if (HANDLERS.includes(name)) node[name] = value
    else node.setAttribute(name, value === true ? "" : value)
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false))
  return node
}

/** A handler of keys: Escape acts, and nothing around it sees the key. */
export const onEscape = (act) => (event) => {
  if (event.key !== "Escape") return
  event.preventDefault()
  event.stopPropagation()
  act()
}

const placed = new WeakMap()

/**
 * A placeholder for the node of a component that updates itself, at any depth of what is drawn.
 *
 * The node stays in the document, and so keeps its focus and its scroll position.
 */
export function place(node) {
  const stand = h("i", { "data-own": true })
  placed.set(stand, node)
  return stand
}

/**
 * Make `root`'s children equal to `wanted`, changing only what differs.
 *
 * Children with `data-key` are matched by it, others by position, so focus, hover and scroll stay.
 * One with `data-own` belongs to a component that updates itself: it is inserted as it is.
 */
export function patch(root, ...wanted) {
  const old = [...root.childNodes]
  const byKey = new Map(old.filter((node) => node.dataset?.key).map((node) => [node.dataset.key, node]))
  const unkeyed = old.filter((node) => !node.dataset?.key && !isOwn(node))
  let at = root.firstChild
  for (const node of wanted.flat(Infinity).filter(Boolean)) {
    const key = node.dataset?.key
    const kept = isOwn(node) ? (placed.get(node) ?? node) : adopt(key ? byKey.get(key) : unkeyed.shift(), node)
    if (kept === at) at = at.nextSibling
    else root.insertBefore(kept, at)
  }
  while (at) {
    const next = at.nextSibling
    at.remove()
    at = next
  }
}

function isOwn(node) {
  return node.dataset?.own !== undefined
}

function adopt(old, wanted) {
  if (!old || old.nodeName !== wanted.nodeName || old.nodeType !== wanted.nodeType) return whole(wanted)
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data
    return old
  }
  for (const { name } of [...old.attributes])
    if (!wanted.hasAttribute(name) && !isReaders(old, name)) old.removeAttribute(name)
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value)
  }
  for (const name of HANDLERS) if (old[name] !== wanted[name]) old[name] = wanted[name]
  patch(old, [...wanted.childNodes])
  return old
}

/** A new node, with its placeholders replaced. */
function whole(node) {
  for (const stand of node.querySelectorAll?.("[data-own]") ?? [])
    if (placed.has(stand)) stand.replaceWith(placed.get(stand))
  return node
}

/** What the reader has opened stays open. */
function isReaders(node, attribute) {
  return node.nodeName === "DETAILS" && attribute === "open"
}

/** Say something to a screen reader, politely. */
export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence
}
