/** What is known of an active alert beside its figures: who has it, who was notified, why nobody was. */

import { h } from "../../lib/dom.js"
import { ago, clock, contained, counted } from "../../lib/formatting.js"
import { stateIcon } from "../state-icon.js"

const MAX_REASONS = 2

/** Remarks on an alert, each with its icon; `known` has `silences` by id and `alerts` by fingerprint. */
export function alertNotes(alert, { silences, alerts }, notified = null) {
  const { acknowledged_at, assigned_to, note, silenced_by, inhibited_by } = alert
  return [
    alert.is_state_unknown && remark("unknown", unknownWords(alert)),
    acknowledged_at && remark("finished", acknowledgedWords(alert)),
    assigned_to && remark("not-analysed", assignedWords(alert)),
    note && remark("not-analysed", noteWords(alert)),
    silenced_by.length > 0 &&
      remark("not-analysed", silencedWords(silenced_by.map((id) => silences.get(id)).filter(Boolean))),
    inhibited_by.length > 0 &&
      remark("not-analysed", mutedWords(inhibited_by.map((each) => alerts.get(each)).filter(Boolean))),
    notified && remark(notified.mark, notified.text),
  ]
}

/** Whether no receiver is notified of it now. */
export const isMuted = ({ silenced_by, inhibited_by }) => silenced_by.length > 0 || inhibited_by.length > 0

/** Why alerts are muted, in sentences, each once; the first few. */
export function mutedReasons(alerts, { silences, alerts: known }) {
  const reasons = alerts.map(({ silenced_by, inhibited_by }) =>
    silenced_by.length
      ? silencedWords(silenced_by.map((id) => silences.get(id)).filter(Boolean))
      : mutedWords(inhibited_by.map((each) => known.get(each)).filter(Boolean)).replace("Muted: c", "C"),
  )
  const different = [...new Set(reasons)]
  const more = different.length > MAX_REASONS ? " There are more reasons." : ""
  return different.slice(0, MAX_REASONS).join(" ") + more
}

const remark = (markName, text) => h("span", { class: "note" }, stateIcon(markName), h("span", {}, text))

function unknownWords({ as_of }) {
  const at = as_of ? clock(new Date(as_of)) : "an earlier time"
  return `Paceline is behind: this is as of ${at}. It is neither resolved nor repeated until it has caught up.`
}

const acknowledgedWords = ({ acknowledged_at, acknowledged_by }) =>
  `Acknowledged by ${contained(acknowledged_by ?? "unknown")}, ${ago(new Date(acknowledged_at))}; no repeats.`

const assignedWords = ({ assigned_to, assigned_at, assigned_by }) =>
  `Assigned to ${contained(assigned_to)} by ${contained(assigned_by)}, ${clock(new Date(assigned_at))}.`

const noteWords = ({ note, noted_at, noted_by }) =>
  `Note by ${contained(noted_by)}, ${clock(new Date(noted_at))}: ${contained(note)}`

function silencedWords(silences) {
  if (!silences.length) return "Silenced."
  const last = silences.reduce((a, b) => (a.ends_at > b.ends_at ? a : b))
  const more = silences.length > 1 ? ` and ${counted(silences.length - 1, "more silence")}` : ""
  const until = last.until_end_of ? "the job ends" : clock(new Date(last.ends_at))
  return `Silenced by ${contained(last.author)} until ${until}: ${contained(last.comment)}${more}.`
}

function mutedWords(inhibiting) {
  if (!inhibiting.length) return "Muted: covered by another alert."
  const [{ rule, subject }] = inhibiting
  return `Muted: covered by the ${contained(rule)} alert${subject && ` (${contained(subject)})`}.`
}
