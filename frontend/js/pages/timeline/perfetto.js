/** Opens a trace in the Perfetto UI, the way that its documentation calls deep linking. */

import { getBytes } from "../../lib/api.js"

const PING_EVERY_MS = 100
// A viewer that loads answers within a few seconds; a slow network gets its minute nevertheless.
const SLOW_AFTER_MS = 8_000
const ANSWERS_WITHIN_MS = 60_000

/**
 * Open the viewer in a new tab and hand it the trace at a path under /api/v1.
 *
 * Must be called from a click, or the browser blocks the tab. `onSlow` gets what to do, in words, if
 * the viewer does not answer within seconds. Throws an Error in words for the reader: no tab, no
 * trace, or a viewer that does not answer.
 */
export async function openInPerfetto({ viewerUrl, path, title, fileName, onSlow }) {
  const { origin } = new URL(viewerUrl)
  const viewer = window.open(viewerUrl)
  if (!viewer) throw new Error("The browser did not open a new tab: allow pop-ups for this page.")
  const slow = setTimeout(() => onSlow(`${origin} has not answered yet. ${otherWays()}`), SLOW_AFTER_MS)
  try {
    // Both take a moment, and neither waits for the other.
    const [buffer] = await Promise.all([getBytes(path), ready(viewer, origin)])
    viewer.postMessage({ perfetto: { buffer, title, fileName } }, origin, [buffer])
  } catch (error) {
    if (error.status !== undefined) viewer.close()
    throw error
  } finally {
    clearTimeout(slow)
  }
}

/** What a reader can do whose browser does not reach the viewer. */
function otherWays() {
  return (
    "If this browser cannot reach it, download the trace and open it in a Perfetto of your own; " +
    "an operator sets PACELINE_PERFETTO_URL to one that this network has."
  )
}

/** Until the viewer answers; it hears nothing before it has loaded, so it is asked again and again. */
function ready(viewer, origin) {
  return new Promise((resolve, reject) => {
    const stop = (settle, value) => {
      clearInterval(asking)
      clearTimeout(patience)
      removeEventListener("message", heard)
      settle(value)
    }
    const heard = (event) =>
      event.source === viewer && event.origin === origin && event.data === "PONG" && stop(resolve)
    const ask = () =>
      viewer.closed
        ? stop(reject, new Error(`The tab was closed before ${origin} had answered. ${otherWays()}`))
        : viewer.postMessage("PING", origin)
    const asking = setInterval(ask, PING_EVERY_MS)
    const patience = setTimeout(
      () => stop(reject, new Error(`${origin} did not answer. ${otherWays()}`)),
      ANSWERS_WITHIN_MS,
    )
    addEventListener("message", heard)
  })
}
