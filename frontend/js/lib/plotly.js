/** Plotly, fetched and run when a page first has a chart to draw: running it takes most of a second. */

let running = null

/** Returns once `Plotly` can be used; fails like a request that got no answer, and may be called again. */
export function plotlyReady() {
  running ??= run().catch((error) => {
    running = null
    throw error
  })
  return running
}

/** Whether `Plotly` can be used now. */
export const isPlotlyReady = () => Boolean(window.Plotly)

function run() {
  const script = document.createElement("script")
  script.src = document.getElementById("plotly").href
  return new Promise((resolve, reject) => {
    script.onload = () => resolve()
    script.onerror = () => {
      script.remove()
      reject(Object.assign(new Error("The server did not answer."), { status: 0, at: new Date() }))
    }
    document.head.append(script)
  })
}
