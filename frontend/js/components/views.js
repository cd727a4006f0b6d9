/** The pages of one subject, as links beside the headline. */

import { h } from "../dom.js"
import { headline } from "./headline.js"

const VIEWS = {
  Alerts: [["/alerts", "Now"], ["/alerts/rules", "Rules"], ["/alerts/receivers", "Receivers"]],
  Settings: [["/settings", "Settings"], ["/settings/audit", "Audit"]],
}

/** A headline with the links to the pages of its subject ("Alerts", "Settings") beside it. */
export function viewTop(subject, told) {
  return h(
    "div",
    { class: "view-top", "data-key": "top" },
    headline(told),
    h("nav", { class: "segments views", "aria-label": `Pages of ${subject.toLowerCase()}` }, VIEWS[subject].map(viewLink)),
  )
}

function viewLink([href, text]) {
  return h("a", { href, "aria-current": location.pathname === href && "page" }, text)
}
