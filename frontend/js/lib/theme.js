/** The theme: light, dark or as the system, the reader's choice, and listeners. */

const KEY = "paceline-theme"
const system = matchMedia("(prefers-color-scheme: dark)")
const listeners = new Set()
let chosen = read()

/** "light", "dark" or "system". */
export function choice() {
  return chosen
}

/** The theme that shows now: "light" or "dark". */
export function theme() {
  return document.documentElement.dataset.theme
}

/** Choose "light", "dark" or "system", and remember it. */
export function choose(name) {
  chosen = name
  try {
    localStorage.setItem(KEY, name)
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  apply()
}

/** Call `listener` after each change; returns a function that stops it. */
export function onTheme(listener) {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

function read() {
  try {
    return localStorage.getItem(KEY) ?? "system"
  } catch {
    return "system"
  }
}

function apply() {
  const shows = chosen === "system" ? (system.matches ? "dark" : "light") : chosen
  if (shows === theme()) return
  document.documentElement.dataset.theme = shows
  for (const listener of listeners) listener()
}

system.addEventListener("change", apply)
