/** Whether the page is connected, and what has changed since it last asked. */

import { listen } from "./stream.js"

// New figures are drawn at most this often.
const MIN_INTERVAL_MS = 1000

const listeners = new Set()
const connectionListeners = new Set()
let state = { connected: false, everConnected: false, lostAt: null, updatedAt: null }

/** The connection: `connected`, `everConnected`, `lostAt`, `updatedAt`. */
export function connection() {
  return state
}

/** Call `listener` when the connection changes. */
export function onConnection(listener) {
  connectionListeners.add(listener)
  return () => connectionListeners.delete(listener)
}

/**
 * Call `listener(changed)` at most once a second; gives back how to stop.
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
      const lostAt = connected ? null : (state.lostAt ?? since)
      change({ connected, everConnected: state.everConnected || connected, lostAt })
    },
    onEvent: (kind, body) => {
      change({ updatedAt: new Date() })
      const jobId = kind === "snapshot" || kind === "resync" ? null : (body.job_id ?? null)
      for (const take of listeners) take(jobId, kind)
    },
  })
}

function change(parts) {
  state = { ...state, ...parts }
  for (const listener of connectionListeners) listener()
}
