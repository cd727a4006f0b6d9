/** The page at an unknown address. */

import { h, patch } from "../../lib/dom.js"

/** Draw it into `root`; there is nothing to leave. */
export function render(root) {
  patch(
    root,
    h(
      "section",
      { class: "card panel-state" },
      h("h1", {}, "There is no such page"),
      h("p", {}, "The address may be cut off, or of another release."),
      h("a", { href: "/" }, "Show the fleet"),
    ),
  )
  return () => {}
}
