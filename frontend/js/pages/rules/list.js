/** The rules in force, in words. */

import { firesWhen, resolvesWhen, SEVERITIES } from "../../components/alerts/words.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { contained, counted } from "../../lib/formatting.js"

const SOURCES = {
  defaults: "the built-in defaults",
  file: "those of the operator\u2019s file (PACELINE_ALERT_RULES)",
  project: "the project\u2019s own",
}

/** Where the rules come from, in words. */
export const sourceWords = (source) => SOURCES[source] ?? contained(source)

/** The card; the first `most` of them, `onMore` shows more. */
export function ruleListCard({ rules, most, onMore }) {
  return h(
    "section",
    { class: "card list", "data-key": "list", "aria-label": "Rules in force" },
    h(
      "header",
      {},
      h("h2", {}, "Rules in force"),
      h("span", { class: "explanation" }, "only complete windows of good fidelity count"),
    ),
    rules.length
      ? h("ol", { class: "rule-rows" }, rules.slice(0, most).map(row))
      : h("p", { class: "none" }, "There is no rule: no alert can fire."),
    rules.length > most &&
      h(
        "button",
        { class: "button more", type: "button", onclick: onMore },
        `Show more of ${counted(rules.length, "rule")}`,
      ),
  )
}

function row(rule) {
  const { name, severity, inhibits, labels, runbook, cordon } = rule
  const [markName, word] = SEVERITIES[severity]
  const more = [
    inhibits.length > 0 && `While it fires, it mutes ${inhibits.map(contained).join(", ")} of the same job.`,
    cordon && `May run the cordon hook ${contained(cordon)}.`,
  ].filter(Boolean)
  return h(
    "li",
    { class: "row", "data-key": name, id: `rule-${name}` },
    h("span", { class: "state" }, stateIcon(markName), word),
    h(
      "div",
      { class: "about" },
      h("b", {}, contained(name)),
      h("p", {}, `${firesWhen(rule)} ${resolvesWhen(rule)}`),
      more.length > 0 && h("p", { class: "quiet" }, more.join(" ")),
      Object.keys(labels).length > 0 &&
        h(
          "ul",
          { class: "labels" },
          Object.entries(labels).map(([label, value]) =>
            h("li", { "data-key": label }, h("b", {}, label), ` ${contained(value)}`),
          ),
        ),
      runbook && h("a", { href: runbook, target: "_blank", rel: "noreferrer" }, "Runbook"),
    ),
  )
}
