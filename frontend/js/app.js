/** Starts the application: session, routes, the top bar, and the live status. */

import { isPaletteKey, openPalette } from "./components/command-palette.js"
import { beginDefinitions } from "./components/definition.js"
import { behindBar, connectionBar, diskBar, lossyBar, panelFailed } from "./components/notices.js"
import { isOver, STATE_WORDS } from "./components/state-icon.js"
import { topBar } from "./components/top-bar.js"
import { getSession, isSignedIn, signIn } from "./lib/api.js"
import { announce, h, patch } from "./lib/dom.js"
import { connection, onConnection, start as startLive } from "./lib/events.js"
import { ago, clock, counted, stepRange, whole } from "./lib/formatting.js"
import { takeSession } from "./lib/session.js"
import { onTheme } from "./lib/theme.js"
import { loadAllPages, pageOf } from "./pages/pages.js"
import * as signInPage from "./pages/sign-in/page.js"

const bar = document.getElementById("top-bar")
const cutOff = document.getElementById("cut-off")
const lossy = document.getElementById("lossy")
const root = document.getElementById("page")

const LOSSY_EVERY_MS = 30_000
// A connection that is back sooner is not worth a bar.
const CUT_OFF_AFTER_MS = 3000
// Data older than both, half a minute and so many steps, is no longer live.
const OLD_MS = 30_000
const OLD_STEPS = 10
// Where the step time is not known, a step may be long.
const OLD_UNKNOWN_MS = 300_000
// A page that draws nothing for so long says that it is loading; most are there sooner.
const LOADING_AFTER_MS = 400
let leave = () => {}
let subject = null
let signedIn = false
let routed = 0 // how often a page was chosen

/** The subject of the live status: `{kind: "fleet" | "empty" | "job", job}`. */
function setSubject(next) {
  subject = next
  drawBar()
}

async function route() {
  leave()
  leave = () => {}
  root.replaceChildren()
  subject = null
  const { page, params } = pageOf(location.pathname)
  document.title = page.title === "Fleet" ? "Paceline" : `${page.title} · Paceline`
  drawBar()
  routed += 1
  const mine = routed
  setTimeout(() => mine === routed && !root.hasChildNodes() && root.append(loading()), LOADING_AFTER_MS)
  try {
    const { render } = await page.load()
    // The reader may have gone on meanwhile.
    if (mine !== routed) return
    leave = render(root, params, { setSubject, onRefused: showSignIn })
  } catch (error) {
    if (mine !== routed) return
    // A script that failed once is not requested again by this document.
    patch(
      root,
      panelFailed("Could not load this page", error, () => location.reload()),
    )
  }
  drawBar()
}

/** Grey lines in place of a page, and in words; the first thing that the page draws takes its place. */
function loading() {
  return h("div", { class: "page-loading", role: "status" }, h("p", {}, "Loading\u2026"), h("i"), h("i"), h("i"))
}

function navigate(event) {
  // The documentation's pages are documents of their own.
  const link = event.target.closest("a[href^='/']:not([href^='/docs'])")
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return
  event.preventDefault()
  history.pushState(null, "", link.href)
  route()
  scrollTo(0, 0)
  root.focus()
}

function drawBar() {
  patch(bar, topBar(signedIn ? liveMark() : null, drawBar))
  drawConnection()
}

/** Say on every page that nothing new comes, from the server or to it: old figures are not to be taken for new ones. */
function drawConnection() {
  const { lostAt, everConnected, lag } = connection()
  const isCutOff = lostAt !== null && Date.now() - lostAt >= CUT_OFF_AFTER_MS
  const wasCutOff = cutOff.hasChildNodes()
  const isBehind = Boolean(signedIn && lag && !isCutOff)
  patch(cutOff, isCutOff ? connectionBar(lostAt, everConnected) : isBehind && behindBar(lag))
  document.documentElement.classList.toggle("is-cut-off", isCutOff)
  if (isCutOff !== wasCutOff) announce(isCutOff ? "No connection to Paceline." : "Connected to Paceline again.")
}

async function drawLossy() {
  const session = signedIn ? await getSession().catch(() => null) : {}
  if (session) patch(lossy, diskBar(session.disk), lossyBar(session.lossy ?? []))
}

function liveMark() {
  const { connected, lostAt, updatedAt, lag } = connection()
  if (lostAt) return stale(`Stale since ${clock(lostAt)}`)
  if (!connected) return { mark: "silent", text: "Connecting" }
  if (lag && subject?.kind !== "job") return stale(`Behind, as of ${clock(new Date(lag.as_of))}`)
  if (subject?.kind === "job") return jobMark(subject)
  if (subject?.kind === "empty") return { mark: "silent", text: "Waiting for the first data" }
  return { mark: "live", text: updatedAt ? `Live, updated ${ago(updatedAt)}` : "Live" }
}

/** The live status of a job; `step_s` is its mean step time, `steps` those of the figures, where they are known. */
function jobMark({ job, step_s, steps }) {
  const { state, last_step, last_data_at, num_silent_ranks, latest_window } = job
  if (state === "finished" && !latest_window) return { mark: "finished", text: "Finished, not analysed" }
  if (state === "finished") return { mark: "finished", tone: "is-ok", text: "Finished, complete" }
  if (isOver(job)) return { mark: state, text: `${STATE_WORDS[state]}, ended ${ago(new Date(job.ended_at))}` }
  if (!last_data_at) return { mark: "silent", text: "Waiting for the first data" }
  const at = new Date(last_data_at)
  const past = ago(at)
  if (state === "unknown") return stale(`Unknown, as of ${job.as_of ? clock(new Date(job.as_of)) : past}`)
  if (state === "stalled") return stale(`Stale, last data ${past}`)
  if (state === "silent") return stale(`${counted(num_silent_ranks, "rank")} silent, last data ${past}`)
  const old_ms = step_s ? Math.max(OLD_MS, OLD_STEPS * 1000 * step_s) : OLD_UNKNOWN_MS
  if (Date.now() - at > old_ms) return { mark: "silent", text: `Last data ${past}` }
  if (last_step === null) return { mark: "live", text: `Live, ${past}` }
  const figures = steps?.length ? `, figures of ${stepRange(steps[0], steps.at(-1))}` : ""
  return { mark: "live", text: `Live at step ${whole(last_step)}${figures}` }
}

function stale(text) {
  return { mark: "silent", tone: "is-stale", text }
}

function showSignIn() {
  if (!signedIn && root.querySelector(".sign-in")) return
  signedIn = false
  routed += 1
  leave()
  root.replaceChildren()
  leave = signInPage.render(root, {}, { onSignedIn: begin })
  drawBar()
  drawLossy()
}

let isListening = false

async function begin() {
  signedIn = true
  if (!isListening) startLive(onLiveRefused)
  isListening = true
  // Before the first page, so that prices and buttons do not move anything later.
  await getSession()
    .then(takeSession)
    .catch(() => {})
  await route()
  drawLossy()
  const whenIdle = window.requestIdleCallback ?? ((act) => setTimeout(act, 1000))
  whenIdle(loadAllPages)
}

function onLiveRefused() {
  isListening = false
  showSignIn()
}

/** The token in an address such as /#token=pl_..., which is removed from the address at once. */
function tokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token")
  if (token) history.replaceState(null, "", location.pathname + location.search)
  return token
}

async function main() {
  drawBar()
  beginDefinitions()
  const token = tokenFromAddress()
  if (token) await signIn(token).catch(() => {})
  if (await isSignedIn().catch(() => false)) begin()
  else showSignIn()
}

function press(event) {
  if (!isPaletteKey(event) || !signedIn) return
  event.preventDefault()
  openPalette()
}

document.addEventListener("click", navigate)
document.addEventListener("keydown", press)
addEventListener("popstate", () => signedIn && route())
onConnection(drawBar)
onTheme(drawBar)
setInterval(drawBar, 1000)
setInterval(drawLossy, LOSSY_EVERY_MS)
main()
