/** The server's events, and whether they still come; goes on where it broke off. */

import { BASE, isSignedIn } from "./api.js"

const KINDS = ["snapshot", "resync", "window", "job", "alert", "heartbeat"]
// After the browser gives up on the stream; it retries mere interruptions by itself.
const RETRY_DELAYS_S = [1, 2, 5, 10]
// A sign of life comes every 15 s: without two of them the line is dead, whatever the browser thinks.
const SILENT_FOR_MS = 40_000
const LOOK_EVERY_MS = 5000

/**
 * Listen to the server's events for as long as the page lives.
 *
 * `onEvent(kind, body)` gets "snapshot", "resync", "window", "job" and "alert";
 * `onConnection(isConnected, since)` each change, since when it is so; `onRefused()` when the
 * session has ended.
 */
export function listen({ onEvent, onConnection, onRefused }) {
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
    // A machine that slept, or a network that went without a word: the figures are as of then.
    onConnection(false, new Date(heardMs))
    again(source)
  }
  // The machine lost its network: nothing more can come by this stream.
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
