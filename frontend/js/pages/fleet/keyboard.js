/** The fleet by keyboard: / searches, arrows or j and k move, Enter opens, x selects, Esc clears. */

const TYPES = new Set(["INPUT", "SELECT", "TEXTAREA"])
const MOVES = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }

/**
 * Listen to keys until the returned function is called.
 *
 * `search` is the field, `rows()` the links in their order,
 * `onclear()` clears every filter and returns whether any was set,
 * `onpick(row)` selects a job.
 */
export function fleetKeys({ search, rows, onclear, onpick }) {
  const press = (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return
    if (act(event)) event.preventDefault()
  }
  const act = ({ key, target }) => {
    // Esc closes a list that is open.
    if (key === "Escape") return target.nodeName !== "SELECT" && clear(target)
    if (key in MOVES && mayMove(key, target)) return move(rows(), MOVES[key])
    if (TYPES.has(target.nodeName)) return false
    if (key === "/") return focus(search)
    return key === "x" && pick(document.activeElement)
  }
  // Arrows scroll the page and change a select, unless the reader is at the jobs or searches.
  const mayMove = (key, target) => {
    if (TYPES.has(target.nodeName)) return target === search && key === "ArrowDown"
    return key.length === 1 || rows().includes(target)
  }
  const pick = (row) => {
    if (!rows().includes(row)) return false
    onpick(row)
    return true
  }
  const clear = (target) => {
    if (!onclear() && target === search) search.blur()
    return true
  }
  document.addEventListener("keydown", press)
  return () => document.removeEventListener("keydown", press)
}

function move(rows, by) {
  if (!rows.length) return false
  const at = rows.indexOf(document.activeElement)
  return focus(rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)])
}

function focus(node) {
  node.focus()
  node.select?.()
  return true
}
