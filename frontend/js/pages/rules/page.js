/** The alert rules: in words, and as a text to edit. */

import { panelFailed, staleNote } from "../../components/notices.js"
import { pageTop } from "../../components/page-head.js"
import { getJson, send, sendText } from "../../lib/api.js"
import { announce, h, patch, place } from "../../lib/dom.js"
import { onChange } from "../../lib/events.js"
import { clock, counted } from "../../lib/formatting.js"
import { may } from "../../lib/session.js"
import { problemsOf, RuleEditor, ruleKeys } from "./editor.js"
import { ruleListCard, sourceWords } from "./list.js"

const PAGE = 20

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { rules: null, error: null, most: PAGE, left: false }
  const draw = () => {
    if (page.left) return
    if (page.rules) patch(root, content(page, editor, { more, retry: refresh }))
    else if (page.error)
      patch(
        root,
        pageTop("Alerts", { sentence: "Alert rules" }),
        panelFailed("Could not load the rules", page.error, refresh),
      )
  }
  const take = (rules, options) => {
    Object.assign(page, { rules, error: null })
    editor.take(rules, options)
    draw()
  }
  const refresh = async () => {
    try {
      take(await getJson("/rules"))
    } catch (error) {
      if (error.status === 401) return onRefused()
      page.error = error
      draw()
    }
  }
  /** Send the text; errors show beside their lines. */
  const attempt = async (request) => {
    try {
      await request()
    } catch (error) {
      if (error.status === 401) return onRefused()
      if (error.status !== 409) return editor.answer({ problems: problemsOf(error) })
      await refresh()
      editor.meet(error.message)
    }
  }
  const says = (said, more = {}) => {
    editor.answer({ said, ...more })
    announce(said)
  }
  // The server refuses to overwrite another user's change.
  const asRead = () => ({ "If-Match": `"${editor.version}"` })
  const yaml = { "Content-Type": "application/yaml" }
  const editor = new RuleEditor({
    check: (text) =>
      attempt(async () => {
        const { rules } = await sendText("POST", "/rules/check", text, yaml)
        says(`No errors: ${counted(rules.length, "rule")}. Nothing is saved yet.`)
      }),
    save: (text) =>
      attempt(async () => {
        const before = page.rules.text
        take(await sendText("PUT", "/rules", text, { ...yaml, ...asRead() }), { isDone: true })
        says(`Saved at ${clock(new Date())}. They apply within seconds.`, { replaced: before })
      }),
    reset: () =>
      attempt(async () => {
        const before = page.rules.text
        take(await send("DELETE", "/rules", undefined, asRead()), { isDone: true })
        says("The project\u2019s own rules are deleted; the default rules apply.", { replaced: before })
      }),
  })
  const more = () => {
    page.most += PAGE
    draw()
  }

  setSubject({ kind: "alerts" })
  refresh()
  const stop = onChange(refresh, "alert")
  return () => {
    page.left = true
    stop()
  }
}

function content({ rules: { rules, source }, error, most }, editor, { more, retry }) {
  return [
    pageTop("Alerts", {
      sentence:
        rules.length === 1
          ? "One rule watches the jobs of this project."
          : `${counted(rules.length, "rule")} watch the jobs of this project.`,
      sub: `They are ${sourceWords(source)}.`,
    }),
    error && staleNote(error, retry),
    h("div", { class: "rules" }, ruleListCard({ rules, most, onMore: more }), textCard(editor)),
  ]
}

function textCard(editor) {
  const mayChange = may("admin")
  return h(
    "section",
    { class: "card", "data-key": "text", "aria-label": "The rules as text" },
    h(
      "header",
      {},
      h("h2", {}, "As text"),
      h(
        "span",
        { class: "explanation" },
        mayChange ? "all rules at once" : "changes need a token with the scope admin",
      ),
    ),
    mayChange ? place(editor.node) : h("pre", { class: "code" }, h("code", {}, editor.saved)),
    ruleKeys(),
  )
}
