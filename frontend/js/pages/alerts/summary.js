/** The headline and figures of the alerts page, and its receivers in brief. */

import {
  failingFirst,
  healthWords,
  isFailing,
  placeWords,
  receiverName,
  receiverState,
  receiversSummary,
} from "../../components/alerts/receiver-words.js"
import { bySeverity, SEVERITIES } from "../../components/alerts/words.js"
import { statStrip } from "../../components/stat-strip.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { ago, clock, contained, counted, whole } from "../../lib/formatting.js"

const HOUR_MS = 3_600_000

/** The firing alerts in one sentence; `active` is a page of firing and pending ones. */
export function alertsSentence({ items, next_cursor }, rules) {
  const firing = items.filter(isFiring)
  const sub = mutedSummary(items, rules)
  const unknown = items.filter(({ is_state_unknown }) => is_state_unknown).length
  if (unknown && !firing.length)
    return {
      marked: ["unknown", "State unknown"],
      sentence: `Whether ${counted(unknown, "alert")} still ${unknown === 1 ? "fires" : "fire"} is not known.`,
      sub,
    }
  if (!firing.length) return { marked: ["healthy", "Quiet"], sentence: "No alert is firing.", sub }
  const worst = Object.keys(SEVERITIES).find((each) => firing.some(({ severity }) => severity === each))
  const marked = SEVERITIES[worst]
  const oldest = firing.reduce((a, b) => (a.firing_at < b.firing_at ? a : b))
  const since = `${clock(new Date(oldest.firing_at))}, ${ago(new Date(oldest.firing_at))}`
  if (firing.length === 1)
    return {
      marked,
      sentence: `One alert is firing: ${contained(oldest.rule)} on ${contained(oldest.job_id)}, since ${since}.`,
      sub,
    }
  const number = next_cursor ? `More than ${whole(firing.length)}` : whole(firing.length)
  return { marked, sentence: `${number} alerts are firing, the oldest since ${since}.`, sub }
}

/** The strip; `endpoints` are all receivers. */
export function alertStats({ items, next_cursor }, endpoints) {
  const firing = items.filter(isFiring)
  const recent = firing.filter(({ firing_at }) => Date.now() - new Date(firing_at) < HOUR_MS).length
  const acknowledged = firing.filter(isAcknowledged).length
  const quiet = items.filter((alert) => alert.phase === "firing" && isMuted(alert)).length
  const pending = items.filter(({ phase }) => phase === "pending").length
  const more = next_cursor ? "+" : ""
  return statStrip([
    {
      label: "Firing now",
      figure: `${whole(firing.length)}${more}`,
      note: firing.length ? `${bySeverity(firing)}; ${whole(recent)} began in the last hour` : "no alert is firing",
    },
    {
      label: "Acknowledged",
      figure: whole(acknowledged),
      note:
        firing.length > acknowledged
          ? `${whole(firing.length - acknowledged)} not acknowledged`
          : "every firing alert is acknowledged",
    },
    { label: "Muted", figure: whole(quiet), note: "silenced, or covered by another alert" },
    {
      label: "Pending",
      figure: `${whole(pending)}${more}`,
      note: "condition holds, but not yet for long enough",
    },
    receivers(endpoints),
  ])
}

function receivers(endpoints) {
  const label = "Receivers"
  if (!endpoints.length)
    return { label, figure: "0", note: "alerts notify nobody: they show on this page only", noteMark: "warning" }
  const { marked, note } = receiversSummary(endpoints)
  return { label, figure: whole(endpoints.length), note, noteMark: marked[0] }
}

function mutedSummary(items, rules) {
  const kept = items.filter((alert) => alert.phase === "firing" && isMuted(alert)).length
  const watch = rules.length === 1 ? "watches" : "watch"
  const watched = `${counted(rules.length, "rule")} ${watch} the jobs of this project.`
  return kept ? `${watched} ${counted(kept, "alert")} ${kept === 1 ? "notifies" : "notify"} nobody.` : watched
}

/** What notifies somebody: neither silenced nor covered by another alert, nor as of long ago. */
const isFiring = (alert) => alert.phase === "firing" && !isMuted(alert) && !alert.is_state_unknown
const isAcknowledged = ({ acknowledged_at }) => acknowledged_at !== null
const isMuted = ({ silenced_by, inhibited_by }) => silenced_by.length > 0 || inhibited_by.length > 0

const MOST = 6

/** The card; failing receivers come first. */
export function receiversCard(endpoints) {
  const ordered = failingFirst(endpoints)
  const more = ordered.length - MOST
  return h(
    "section",
    { class: "card receivers-brief", "data-key": "receivers", "aria-label": "Receivers" },
    h(
      "header",
      {},
      h("h2", {}, "Receivers"),
      h("a", { class: "toggle", href: "/alerts/receivers" }, "Receivers and notifications"),
    ),
    ordered.length ? h("ul", {}, ordered.slice(0, MOST).map(row)) : noReceivers(),
    more > 0 && h("p", { class: "remark" }, `and ${more} more`),
  )
}

function row(endpoint) {
  const [markName, word] = receiverState(endpoint)
  return h(
    "li",
    { "data-key": endpoint.receiver_id },
    h("span", { class: "state" }, stateIcon(markName), word),
    h(
      "span",
      {},
      h("b", {}, receiverName(endpoint)),
      h("small", {}, isFailing(endpoint) ? healthWords(endpoint) : placeWords(endpoint)),
    ),
  )
}

function noReceivers() {
  return h(
    "div",
    { class: "panel-state" },
    stateIcon("warning"),
    h("b", {}, "No receivers"),
    h("p", {}, "Alerts show on this page only until there is a receiver."),
  )
}
