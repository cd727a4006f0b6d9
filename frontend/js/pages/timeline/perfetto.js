/** Opens a trace in the Perfetto UI, the way that its documentation calls deep linking. */

import { getBytes } from "../../lib/api.js"

const PING_EVERY_MS = 100
const ANSWERS_WITHIN_MS = 60_000

/**
 * Open the viewer in a new tab and hand it the trace at a path under /api/v1.
 *
 * Must be called from a click, or the browser blocks the tab. Throws an Error in words for the
 * reader: no tab, no trace, or a viewer that does not answer.
 */
export async function openInPerfetto({ viewerUrl, path, title, fileName }) {
  const { origin } = new URL(viewerUrl)
  const viewer = window.open(viewerUrl)
  if (!viewer) throw new Error("The browser did not open a new tab: allow pop-ups for this page.")
  try {
    // Both take a moment, and neither waits for the other.
    const [buffer] = await Promise.all([getBytes(path), ready(viewer, origin)])
    viewer.postMessage({ perfetto: { buffer, title, fileName } }, origin, [buffer])
  } catch (error) {
    if (error.status !== undefined) viewer.close()
    throw error
  }
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
    const asking = setInterval(() => viewer.postMessage("PING", origin), PING_EVERY_MS)
    const patience = setTimeout(
      () => stop(reject, new Error(`${origin} did not answer. Download the file, and open it there by hand.`)),
      ANSWERS_WITHIN_MS,
    )
    addEventListener("message", heard)
  })
}
