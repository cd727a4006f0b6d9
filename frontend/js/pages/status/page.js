/** The state of the service itself: queue, consumers, canary, dead-man's switches, disk. */

import { panelFailed, staleNote } from "../../components/notices.js"
import { pageTop } from "../../components/page-head.js"
import { statStrip } from "../../components/stat-strip.js"
import { getJson } from "../../lib/api.js"
import { patch } from "../../lib/dom.js"
import { partsOf } from "./cards.js"
import { statsOf } from "./stats.js"

const EVERY_MS = 5000
const MARKS = { ok: ["healthy", "Works"], degraded: ["warning", "Degraded"], down: ["stalled", "Down"] }

/** Draw the page into `root`; returns a function that leaves the page. */
export function render(root, _params, { setSubject, onRefused }) {
  const page = { status: null, error: null, hasLeft: false, isAsking: false }
  const draw = () => page.hasLeft || patch(root, content(page, refresh))
  const refresh = async () => {
    if (page.isAsking) return
    page.isAsking = true
    const answer = await getJson("/status").catch((error) => error)
    page.isAsking = false
    if (page.hasLeft) return
    if (answer.status === 401) return onRefused()
    Object.assign(page, answer instanceof Error ? { error: answer } : { status: answer, error: null })
    draw()
  }
  setSubject({ kind: "settings" })
  draw()
  refresh()
  const timer = setInterval(refresh, EVERY_MS)
  return () => {
    page.hasLeft = true
    clearInterval(timer)
  }
}

function content({ status, error }, retry) {
  if (!status)
    return [
      pageTop("Settings", { sentence: "Status" }),
      error && panelFailed("Could not load the status", error, retry),
    ]
  return [
    pageTop("Settings", {
      marked: MARKS[status.state],
      sentence: status.sentence,
      sub: "The service itself, all projects together. This page asks every 5 s.",
    }),
    error && staleNote(error, retry),
    statStrip(statsOf(status)),
    partsOf(status),
  ]
}
