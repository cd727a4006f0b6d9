/** Starts the page: session, routes, the top bar, and what is live. */

import { isSignedIn, signIn, whatMayBeLost } from "./api.js"
import { lossyBar } from "./components/lossy-bar.js"
import { topBar } from "./components/top-bar.js"
import { patch } from "./dom.js"
import { connection, onConnection, start as startLive } from "./live.js"
import * as fleet from "./pages/fleet.js"
import * as job from "./pages/job.js"
import * as signInPage from "./pages/sign-in.js"
import { onTheme } from "./theme.js"
import { ago, clock, whole } from "./words.js"

const PAGES = [fleet, job]
const bar = document.getElementById("top-bar")
const lossy = document.getElementById("lossy")
const root = document.getElementById("page")

const LOSSY_EVERY_MS = 30_000
let leave = () => {}
let subject = null
let signedIn = false

/** What the live mark speaks of: `{kind: "fleet" | "empty" | "job", job}`. */
function setSubject(next) {
  subject = next
  drawBar()
}

function route() {
  leave()
  root.replaceChildren()
  subject = null
  const { page, params } = match(location.pathname)
  document.title = page.title === "Fleet" ? "Paceline" : `${page.title} · Paceline`
  leave = page.render(root, params, { setSubject, onRefused: showSignIn })
  drawBar()
}

function match(path) {
  for (const page of PAGES) {
    const found = page.path.exec(path)
    if (found) return { page, params: found.groups ?? {} }
  }
  return { page: fleet, params: {} }
}

function navigate(event) {
  const link = event.target.closest("a[href^='/']")
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return
  event.preventDefault()
  history.pushState(null, "", link.href)
  route()
  scrollTo(0, 0)
  root.focus()
}

function drawBar() {
  patch(bar, topBar(signedIn ? liveMark() : null, drawBar))
}

async function drawLossy() {
  const sentences = signedIn ? await whatMayBeLost().catch(() => null) : []
  if (sentences) patch(lossy, lossyBar(sentences))
}

function liveMark() {
  const { connected, everConnected, lostAt, updatedAt } = connection()
  if (!connected && everConnected) return stale(`Stale since ${clock(lostAt)}`)
  if (!connected) return { mark: "silent", text: "Connecting" }
  if (subject?.kind === "job") return jobMark(subject.job)
  if (subject?.kind === "empty") return { mark: "silent", text: "Waiting for the first data" }
  return { mark: "live", text: updatedAt ? `Live, updated ${ago(updatedAt)}` : "Live" }
}

function jobMark({ state, last_step, last_data_at }) {
  if (state === "finished") return { mark: "finished", tone: "is-ok", text: "Finished, complete" }
  if (!last_data_at) return { mark: "silent", text: "Waiting for the first data" }
  const past = ago(new Date(last_data_at))
  if (state === "stalled" || state === "stale") return stale(`Stale, last data ${past}`)
  return { mark: "live", text: `Live, ${last_step === null ? "" : `step ${whole(last_step)}, `}${past}` }
}

function stale(text) {
  return { mark: "silent", tone: "is-stale", text }
}

function showSignIn() {
  if (!signedIn && root.querySelector(".sign-in")) return
  signedIn = false
  leave()
  root.replaceChildren()
  leave = signInPage.render(root, {}, { onSignedIn: begin })
  drawBar()
  drawLossy()
}

let isListening = false

function begin() {
  signedIn = true
  if (!isListening) startLive(onLiveRefused)
  isListening = true
  route()
  drawLossy()
}

function onLiveRefused() {
  isListening = false
  showSignIn()
}

/** The token in an address such as /#token=pl_..., taken out of the address at once. */
function tokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token")
  if (token) history.replaceState(null, "", location.pathname + location.search)
  return token
}

async function main() {
  drawBar()
  const token = tokenFromAddress()
  if (token) await signIn(token).catch(() => {})
  if (await isSignedIn().catch(() => false)) begin()
  else showSignIn()
}

document.addEventListener("click", navigate)
addEventListener("popstate", () => signedIn && route())
onConnection(drawBar)
onTheme(drawBar)
setInterval(drawBar, 1000)
setInterval(drawLossy, LOSSY_EVERY_MS)
main()
