/** Silences and maintenance: the list. */

import { matchersWords } from "../../components/alerts/matchers.js"
import { stateIcon } from "../../components/state-icon.js"
import { h } from "../../lib/dom.js"
import { clock, contained } from "../../lib/formatting.js"

/**
 * The card; `silences` is a page of active and planned ones.
 *
 * `act` is null where the reader may change nothing, else has `plan()` and `end(silence)`; `form` is
 * the form of a new one while it is open here, `refused` is `{id, text}` of one that could not be
 * ended, `onMore` shows more of them.
 */
export function silencesCard({ silences: { items, next_cursor }, act, form, refused, onMore }) {
  return h(
    "section",
    { class: "card silences", "data-key": "silences", "aria-label": "Silences" },
    h(
      "header",
      {},
      h("h2", {}, "Silences"),
      h("span", { class: "explanation" }, "these alerts notify nobody"),
      act &&
        !form &&
        h(
          "button",
          { class: "text-button toggle", type: "button", "data-key": "plan", onclick: act.plan },
          "New silence",
        ),
    ),
    form,
    items.length
      ? h(
          "ul",
          { class: "silence-rows" },
          items.map((silence) => row(silence, act, refused)),
        )
      : !form && h("p", { class: "quiet" }, "No silences, none planned."),
    next_cursor && h("button", { class: "button more", type: "button", onclick: onMore }, "Show more"),
  )
}

function row(silence, act, refused) {
  const { silence_id, kind, matchers, author, comment, state } = silence
  const words = matchersWords(matchers)
  return h(
    "li",
    { class: "row", "data-key": silence_id },
    h("span", { class: "state" }, stateIcon(state === "active" ? "not-analysed" : "silent"), stateWords(silence)),
    h("b", {}, words),
    h(
      "p",
      {},
      contained(comment),
      h("small", {}, `by ${contained(author)}${kind === "maintenance" ? ", maintenance" : ""}`),
    ),
    refused?.id === silence_id && h("p", { class: "refused", role: "alert", "data-key": "refused" }, refused.text),
    act &&
      h(
        "button",
        {
          class: "text-button",
          type: "button",
          "aria-label": `End the silence of ${words}`,
          onclick: () => act.end(silence),
        },
        state === "coming" ? "Cancel" : "End now",
      ),
  )
}

function stateWords({ state, starts_at, ends_at, until_end_of }) {
  const until = until_end_of ? `${contained(until_end_of)} ends` : clock(new Date(ends_at))
  return state === "active" ? `Until ${until}` : `From ${clock(new Date(starts_at))} until ${until}`
}
