/** Which rules jobs are held to, in words and as text to be changed. */

import { getJson, send, sendText } from "../api.js"
import { noteBar } from "../components/note-bar.js"
import { panelFailed } from "../components/panel-failed.js"
import { RuleEditor, problemsOf } from "../components/rule-editor.js"
import { ruleKeys } from "../components/rule-keys.js"
import { ruleListCard, sourceWords } from "../components/rule-list.js"
import { viewTop } from "../components/views.js"
import { announce, h, patch, place } from "../dom.js"
import { onChange } from "../live.js"
import { may } from "../scopes.js"
import { clock, counted } from "../words.js"

export const path = /^\/alerts\/rules$/
export const title = "Alert rules"

const PAGE = 20

/** Draw the page into `root`; gives back how to leave. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { rules: null, error: null, most: PAGE, left: false }
  const draw = () => {
    if (page.left) return
    if (page.rules) patch(root, content(page, editor, { more, retry: refresh }))
    else if (page.error) patch(root, viewTop("Alerts", { sentence: "Alert rules" }), panelFailed("Could not load the rules", page.error, refresh))
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
  /** Do something with the text; what is refused shows beside its lines. */
  const attempt = async (deed) => {
    try {
      await deed()
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
  // Somebody else's change since is not written over.
  const asRead = () => ({ "If-Match": `"${editor.version}"` })
  const yaml = { "Content-Type": "application/yaml" }
  const editor = new RuleEditor({
    check: (text) => attempt(async () => {
      const { rules } = await sendText("POST", "/rules/check", text, yaml)
      says(`All is well: ${counted(rules.length, "rule")}. Nothing is changed yet.`)
    }),
    save: (text) => attempt(async () => {
      const before = page.rules.text
      take(await sendText("PUT", "/rules", text, { ...yaml, ...asRead() }), { isDone: true })
      says(`Saved at ${clock(new Date())}. They hold within seconds.`, { replaced: before })
    }),
    reset: () => attempt(async () => {
      const before = page.rules.text
      take(await send("DELETE", "/rules", undefined, asRead()), { isDone: true })
      says("The project\u2019s own rules are gone; the usual ones hold.", { replaced: before })
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
    viewTop("Alerts", {
      sentence: rules.length === 1 ? "One rule watches the jobs of this project." : `${counted(rules.length, "rule")} watch the jobs of this project.`,
      sub: `They are ${sourceWords(source)}.`,
    }),
    error && noteBar({ fact: `Shown as of ${clock(error.at)}.`, consequence: "The server did not answer since.", act: { text: "Try again", onclick: retry } }),
    h("div", { class: "rules" }, ruleListCard({ rules, most, onMore: more }), textCard(editor)),
  ]
}

function textCard(editor) {
  const mayChange = may("admin")
  return h(
    "section",
    { class: "card", "data-key": "text", "aria-label": "The rules as text" },
    h("header", {}, h("h2", {}, "As text"), h("span", { class: "explanation" }, mayChange ? "all rules at once" : "changing them takes a token with the scope admin")),
    mayChange ? place(editor.node) : h("pre", { class: "code" }, h("code", {}, editor.saved)),
    ruleKeys(),
  )
}
