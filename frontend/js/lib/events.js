/** The connection to the server, by its event stream and by requests; and which jobs have changed. */

import { BASE, getSession, isSignedIn, onReach } from "./api.js"

// New figures are drawn at most this often.
const MIN_INTERVAL_MS = 1000

const listeners = new Set()
const connectionListeners = new Set()
let state = { connected: false, everConnected: false, isReached: true, lostAt: null, updatedAt: null, lag: null }

/**
 * The connection: `connected` (the event stream), `everConnected`, `isReached` (the newest request), `updatedAt`.
 * `lag` is `{as_of, behind_s}` while the server says that it is behind, else null.
 *
 * `lostAt` is when the first of both failed that has not worked since; null while both work.
 */
export function connection() {
  return state
}

/** Call `listener` when the connection changes. */
export function onConnection(listener) {
  connectionListeners.add(listener)
  return () => connectionListeners.delete(listener)
}

/**
 * Call `listener(changed)` at most once a second; returns a function that stops it.
 *
 * `changed` is null when everything may have changed, else the set of changed job ids. With `only`
 * (such as "alert") other kinds of events say nothing.
 */
export function onChange(listener, only = null) {
  const gathered = { all: false, jobs: new Set(), timer: null, lastMs: -Infinity }
  const flush = () => {
    const changed = gathered.all ? null : gathered.jobs
    Object.assign(gathered, { all: false, jobs: new Set(), timer: null, lastMs: performance.now() })
    listener(changed)
  }
  const take = (jobId, kind) => {
    if (only && jobId !== null && kind !== only) return
    if (jobId === null) gathered.all = true
    else gathered.jobs.add(jobId)
    const wait_ms = Math.max(0, gathered.lastMs + MIN_INTERVAL_MS - performance.now())
    gathered.timer ??= setTimeout(flush, wait_ms)
  }
  listeners.add(take)
  return () => {
    listeners.delete(take)
    clearTimeout(gathered.timer)
  }
}

/** Open the event stream; `onRefused` when the session has ended. */
export function start(onRefused) {
  listen({
    onRefused,
    onConnection: (connected, since) => {
      if (connected === state.connected) return
      becomes({ connected, everConnected: state.everConnected || connected }, since)
    },
    onEvent: (kind, body) => {
      if (kind === "lag") return hearLag(body)
      change({ updatedAt: new Date() })
      const jobId = kind === "snapshot" || kind === "resync" ? null : (body.job_id ?? null)
      for (const take of listeners) take(jobId, kind)
    },
  })
}

// The server says every 2 s that it is behind.
const LAG_LASTS_MS = 8000
let lagEnds = null

function hearLag(lag) {
  clearTimeout(lagEnds)
  const isBehind = lag.behind_s !== null
  if (isBehind) lagEnds = setTimeout(() => hearLag({ behind_s: null }), LAG_LASTS_MS)
  const hasChanged = isBehind !== (state.lag !== null)
  change({ lag: isBehind ? lag : null })
  // States become unknown, or known, without a change of any job.
  if (hasChanged) for (const take of listeners) take(null, "resync")
}

// How often the server is asked again after a request that it did not answer.
const ASK_AGAIN_MS = 2000
let asking = null

onReach((isReached) => {
  if (!isReached) asking ??= setInterval(() => getSession().catch(() => {}), ASK_AGAIN_MS)
  if (isReached === state.isReached) return
  if (isReached) {
    clearInterval(asking)
    asking = null
  }
  becomes({ isReached }, new Date())
})

/** The stream or the requests fail or work again, since then. */
function becomes(parts, since) {
  const { isReached, connected, everConnected } = { ...state, ...parts }
  const works = isReached && (connected || !everConnected)
  const isBack = works && state.lostAt !== null
  change({ ...parts, lostAt: works ? null : (state.lostAt ?? since) })
  // The pages are as of the loss, and an outage of requests alone brings no event.
  if (isBack) for (const take of listeners) take(null, "resync")
}

function change(parts) {
  state = { ...state, ...parts }
  for (const listener of connectionListeners) listener()
}

const KINDS = ["snapshot", "resync", "window", "job", "alert", "lag", "heartbeat"]
// After the browser gives up on the stream; it retries mere interruptions by itself.
const RETRY_DELAYS_S = [1, 2, 5, 10]
// The server sends a heartbeat every 15 s; two missing ones mean a dead connection.
const SILENT_FOR_MS = 40_000
const LOOK_EVERY_MS = 5000

/**
 * Listen to the server's events for as long as the page lives.
 *
 * `onEvent(kind, body)` gets "snapshot", "resync", "window", "job", "alert" and "lag";
 * `onConnection(isConnected, since)` each change, since when it is so; `onRefused()` when the
 * session has ended.
 */
function listen({ onEvent, onConnection, onRefused }) {
  const state = { source: null, lastId: "", heardMs: Date.now(), failures: 0 }

  const open = () => {
    const source = new EventSource(address(state.lastId))
    Object.assign(state, { source, heardMs: Date.now() })
    source.onopen = () => {
      state.failures = 0
      onConnection(true, new Date())
    }
    source.onerror = () => {
      onConnection(false, new Date())
      if (source.readyState === EventSource.CLOSED) again(source)
    }
    for (const kind of KINDS) source.addEventListener(kind, (event) => hear(kind, event))
  }
  const hear = (kind, { data, lastEventId }) => {
    Object.assign(state, { heardMs: Date.now(), lastId: lastEventId || state.lastId })
    if (kind !== "heartbeat") onEvent(kind, data ? JSON.parse(data) : {})
  }
  const again = (source) => {
    source.close()
    if (state.source === source) state.source = null
    const delay_s = RETRY_DELAYS_S[Math.min(state.failures++, RETRY_DELAYS_S.length - 1)]
    setTimeout(async () => {
      if (state.source) return
      if (await isSignedIn().catch(() => true)) open()
      else end()
    }, delay_s * 1000)
  }
  const look = () => {
    const { source, heardMs } = state
    if (!source || source.readyState !== EventSource.OPEN || Date.now() - heardMs < SILENT_FOR_MS) return
    // The machine slept, or the network failed silently: figures are as of the last event.
    onConnection(false, new Date(heardMs))
    again(source)
  }
  // The machine lost its network: this stream delivers no more events.
  const lose = () => {
    if (!state.source) return
    onConnection(false, new Date())
    again(state.source)
  }
  const end = () => {
    clearInterval(looking)
    removeEventListener("offline", lose)
    onRefused()
  }

  const looking = setInterval(look, LOOK_EVERY_MS)
  addEventListener("offline", lose)
  open()
}

/** A stream that is opened anew cannot send the header that the browser's own retry sends. */
function address(lastId) {
  return `${BASE}/events${lastId && `?after=${encodeURIComponent(lastId)}`}`
}
