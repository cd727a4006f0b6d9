/** The reader's choices, kept in the address: a link shows a colleague the same thing. */

/** A value longer than this, as the address has it, is left out: servers and mail programs cut longer ones. */
export const LONGEST_VALUE = 6000

/** The values of these names in the address; null where there is none. */
export function readAddress(...names) {
  const query = new URLSearchParams(location.search)
  return Object.fromEntries(names.map((name) => [name, query.get(name)]))
}

/**
 * Change values in the address; null removes one. The document is not reloaded.
 *
 * With `isStep` the browser's "back" undoes it: for a selected window, not for a hovered cell.
 */
export function updateAddress(changes, { isStep = false } = {}) {
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
