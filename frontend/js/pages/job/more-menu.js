/** The menu "More" of a job, its owner and tags under the headline, and the note on an archived or deleted job. */

import { CHANGES, changesOf, hasEnded } from "../../components/job-lifecycle.js"
import { menu } from "../../components/menu.js"
import { h } from "../../lib/dom.js"
import { clock, contained } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"

const OWNER = "owner"

/** The menu, null where the reader's token allows nothing of it; `onchange(name)` and `onlabels()` do it. */
export function moreMenu({ job, onchange, onlabels }) {
  const allowed = changesOf(job).filter((name) => may(CHANGES[name].scope))
  if (!allowed.length && !may("write")) return null
  const isRunning = !hasEnded(job)
  return menu(
    { class: "is-list", "data-key": "more" },
    h("summary", { class: "button" }, "More"),
    h(
      "div",
      { class: "menu-list" },
      may("write") && item("Owner and tags", onlabels),
      !isRunning && allowed.map((name) => item(CHANGES[name].text, () => onchange(name))),
      isRunning &&
        allowed.length > 0 &&
        h("p", { class: "quiet" }, "A running job cannot be archived or deleted: it has to end first."),
    ),
  )
}

function item(text, onclick) {
  return h("button", { class: "item", type: "button", onclick }, text)
}

/** Owner and tags as links to the jobs that have them, null without any; `labels` as the API has them. */
export function labelLinks({ labels, edited_labels }) {
  const tags = Object.keys(edited_labels).filter((name) => name !== OWNER)
  const names = [...(labels[OWNER] ? [OWNER] : []), ...tags.toSorted()]
  if (!names.length) return null
  return h(
    "ul",
    { class: "job-labels", "data-key": "labels", "aria-label": "Owner and tags" },
    names.map((name) =>
      h(
        "li",
        { "data-key": name },
        h(
          "a",
          { class: "chip", href: `/?${new URLSearchParams({ q: `${name}=${labels[name]}` })}` },
          `${contained(name)}: ${contained(labels[name])}`,
        ),
      ),
    ),
  )
}

/** What a reader of an archived or deleted job has to know, for a note bar; null for others. */
export function lifecycleNote({ lifecycle, archived_at, removal_at }, onchange) {
  if (lifecycle === "archived")
    return {
      fact: `Archived at ${clock(new Date(archived_at))}.`,
      consequence: "It is not in the fleet\u2019s list; its next run brings it back.",
      act: may("write") ? { text: "Unarchive", onclick: () => onchange("unarchive") } : null,
    }
  if (lifecycle === "deleted")
    return {
      fact: "Deleted.",
      consequence: `Its data is removed from ${clock(new Date(removal_at))} on.`,
      act: may("admin") ? { text: "Restore", onclick: () => onchange("restore") } : null,
    }
  return null
}
