/** Rows of charts that fill the page's width: one wide chart, or two halves. */

/**
 * Names in rows of one or two, near their order: the partner of a half is the next half after it.
 *
 * A half without a partner has the row to itself, so that no half of the page is empty.
 */
export function chartRows(names, isWide) {
  const rows = []
  const left = [...names]
  while (left.length) {
    const name = left.shift()
    const partner = isWide(name) ? -1 : left.findIndex((other) => !isWide(other))
    rows.push(partner < 0 ? [name] : [name, ...left.splice(partner, 1)])
  }
  return rows
}
