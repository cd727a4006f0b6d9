/** The headline of the alerts page and its figures. */

import { ago, clock, contained, counted, whole } from "../words.js"
import { SEVERITIES, bySeverity } from "./alert-words.js"
import { isIll } from "./receiver-words.js"
import { statStrip } from "./stat-strip.js"

const HOUR_MS = 3_600_000

/** What fires, in one sentence; `active` is a page of all that is not at rest. */
export function alertsSentence({ items, next_cursor }, rules) {
  const firing = items.filter(isFiring)
  const sub = quietWords(items, rules)
  if (!firing.length) return { marked: ["healthy", "Quiet"], sentence: "No alert is firing.", sub }
  const worst = Object.keys(SEVERITIES).find((each) => firing.some(({ severity }) => severity === each))
  const marked = SEVERITIES[worst]
  const oldest = firing.reduce((a, b) => (a.firing_at < b.firing_at ? a : b))
  const since = `${clock(new Date(oldest.firing_at))}, ${ago(new Date(oldest.firing_at))}`
  if (firing.length === 1) return { marked, sentence: `One alert is firing: ${contained(oldest.rule)} on ${contained(oldest.job_id)}, since ${since}.`, sub }
  const number = next_cursor ? `More than ${whole(firing.length)}` : whole(firing.length)
  return { marked, sentence: `${number} alerts are firing, the oldest since ${since}.`, sub }
}

/** The strip; `endpoints` are all receivers. */
export function alertStats({ items, next_cursor }, endpoints) {
  const firing = items.filter(isFiring)
  const recent = firing.filter(({ firing_at }) => Date.now() - new Date(firing_at) < HOUR_MS).length
  const acknowledged = firing.filter(isAcknowledged).length
  const quiet = firing.filter(isKeptBack).length
  const more = next_cursor ? "+" : ""
  return statStrip([
    { label: "Firing now", figure: `${whole(firing.length)}${more}`, note: firing.length ? `${bySeverity(firing)}; ${whole(recent)} began in the last hour` : "none began and still fires" },
    { label: "Somebody looks after", figure: whole(acknowledged), note: firing.length > acknowledged ? `${whole(firing.length - acknowledged)} not acknowledged` : "all that fires is acknowledged" },
    { label: "Told to nobody", figure: whole(quiet), note: "silenced, or another alert speaks for it" },
    { label: "Pending", figure: `${whole(items.length - firing.length)}${more}`, note: "hold, but not for long enough yet" },
    receivers(endpoints),
  ])
}

function receivers(endpoints) {
  const label = "Receivers"
  if (!endpoints.length) return { label, figure: "0", note: "nobody is told: alerts show on this page alone", noteMark: "warning" }
  const ill = endpoints.filter(isIll).length
  return { label, figure: whole(endpoints.length), note: ill ? `${counted(ill, "receiver")} cannot be told` : "all can be told", noteMark: ill ? "warning" : "healthy" }
}

function quietWords(items, rules) {
  const kept = items.filter((alert) => isFiring(alert) && isKeptBack(alert)).length
  const watched = `${counted(rules.length, "rule")} ${rules.length === 1 ? "watches" : "watch"} the jobs of this project.`
  return kept ? `${watched} ${counted(kept, "alert")} ${kept === 1 ? "is" : "are"} told to nobody.` : watched
}

const isFiring = ({ phase }) => phase === "firing"
const isAcknowledged = ({ acknowledged_at }) => acknowledged_at !== null
const isKeptBack = ({ silenced_by, inhibited_by }) => silenced_by.length > 0 || inhibited_by.length > 0
