/** What the reader has chosen, kept in the address: a link shows a colleague the same thing. */

/** The values in the address, by name; null where one is not chosen. */
export function chosen(...names) {
  const query = new URLSearchParams(location.search)
  return Object.fromEntries(names.map((name) => [name, query.get(name)]))
}

/**
 * Change what is chosen; null takes a value out. The page draws itself, nothing is loaded anew.
 *
 * `isStep` makes it a step that "back" undoes: a window picked is one, a cell hovered is none.
 */
export function choose(changes, { isStep = false } = {}) {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString().replaceAll("%2C", ",")
  const address = location.pathname + (text && `?${text}`)
  if (address === location.pathname + location.search) return
  if (isStep) history.pushState(null, "", address)
  else history.replaceState(null, "", address)
}
