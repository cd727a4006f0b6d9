/** Who acknowledged, silenced or changed what, and when. */

import { getJson } from "../api.js"
import { OBJECTS, auditTable } from "../components/audit-rows.js"
import { panelFailed } from "../components/panel-failed.js"
import { viewTop } from "../components/views.js"
import { h, patch } from "../dom.js"
import { onChange } from "../live.js"
import { may } from "../scopes.js"
import { choose, chosen } from "../selection.js"

export const path = /^\/settings\/audit$/
export const title = "Audit"

const PAGE = 50
const MOST = 500
const TYPING_MS = 250

/** Draw the page into `root`; gives back how to leave. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { answer: null, error: null, most: PAGE, left: false, asked: 0 }
  const draw = () => page.left || patch(root, content(page, act))
  const refresh = async () => {
    if (!may("admin")) return draw()
    const asked = ++page.asked
    const answer = await load(page.most).catch((error) => error)
    if (page.left || asked !== page.asked) return
    if (answer.status === 401) return onRefused()
    Object.assign(page, answer instanceof Error ? { error: answer } : { answer, error: null })
    draw()
  }
  let timer = null
  const act = {
    refresh,
    choose: (changes) => (choose(changes), (page.most = PAGE), refresh()),
    type: (event) => {
      const { value } = event.target
      clearTimeout(timer)
      timer = setTimeout(() => act.choose({ actor: value.trim() }), TYPING_MS)
    },
    more: () => ((page.most = Math.min(MOST, page.most + PAGE)), refresh()),
  }

  setSubject({ kind: "settings" })
  refresh()
  const stop = onChange(refresh, "alert")
  return () => {
    page.left = true
    clearTimeout(timer)
    stop()
  }
}

function load(limit) {
  const { object, actor } = chosen("object", "actor")
  return getJson(`/audit?${new URLSearchParams({ limit, ...(object && { object_kind: object }), ...(actor && { actor }) })}`)
}

function content({ answer, error, most }, act) {
  const top = viewTop("Settings", { sentence: "Audit", sub: "Who acknowledged, silenced or changed what. Kept as long as results are." })
  if (!may("admin")) return [top, forbidden()]
  return [top, error && panelFailed("Could not load the audit", error, act.refresh), answer && deeds(answer, most, act)]
}

function forbidden() {
  return h("section", { class: "card panel-state", "data-key": "forbidden" }, h("b", {}, "Not shown with your token"), h("p", {}, "The audit is for those whose token has the scope admin. Sign in with one to see it."))
}

function deeds({ items, next_cursor }, most, act) {
  const { object, actor } = chosen("object", "actor")
  return h(
    "section",
    { class: "card ledger", "data-key": "deeds", "aria-label": "Deeds" },
    h(
      "div",
      { class: "fleet-filters" },
      h("select", { class: "field", "aria-label": "What it was done to", onchange: (event) => act.choose({ object: event.target.value }) }, OBJECTS.map(([value, text]) => h("option", { value, selected: value === (object ?? "") }, text))),
      h("input", { class: "field", type: "search", "aria-label": "Who", placeholder: "Who, as it is written below", value: actor ?? "", maxlength: 300, oninput: act.type }),
    ),
    items.length ? auditTable(items) : h("p", { class: "none quiet" }, object || actor ? "Nothing fits the filter." : "Nobody has changed anything so far."),
    next_cursor && most < MOST && h("div", { class: "more" }, h("button", { class: "button", type: "button", onclick: act.more }, "Show more")),
  )
}
