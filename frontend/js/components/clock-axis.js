/** The clock beside the steps of a chart, in the reader's zone; the server's figures have it in UTC. */

import { whole } from "../lib/formatting.js"
import { hoverTime, tickTime, zoneName } from "../lib/times.js"

/** The figure with local times at its ticks and in the hovers of its steps. */
export function withLocalClock(figure) {
  const { clock } = figure.meta
  if (!clock) return figure
  const { xaxis } = figure.layout
  return {
    ...figure,
    data: figure.data.map(hovering(clock)),
    layout: { ...figure.layout, xaxis: ticked(xaxis, clock) },
  }
}

function ticked(axis, { ticks, detail }) {
  const ticktext = axis.ticktext.map((text, index) =>
    ticks[index] === null ? text : `${text.split("<br>")[0]}<br>${tickTime(ticks[index], detail)}`,
  )
  const text = axis.title?.text?.replace("time, UTC", `time, ${zoneName()}`)
  return { ...axis, ticktext, ...(text && { title: { ...axis.title, text } }) }
}

/** A function that names steps with their times in a trace's hovers. */
function hovering({ steps, started_s, columns }) {
  const names = steps.map((step, index) =>
    started_s[index] === null ? whole(step) : `${whole(step)}, ${hoverTime(started_s[index])}`,
  )
  const byStep = new Map(steps.map((step, index) => [whole(step), names[index]]))
  return (trace) => {
    if (!trace.customdata) return trace
    if (trace.type !== "heatmap")
      return Array.isArray(trace.customdata)
        ? { ...trace, customdata: trace.customdata.map((step) => byStep.get(step) ?? step) }
        : trace
    // Cells with a text of their own name their step in it.
    if (!trace.hovertemplate?.includes("step %{customdata:,}")) return trace
    const row = columns.map((index) => (index === null ? "" : names[index]))
    return {
      ...trace,
      customdata: trace.y.map(() => row),
      hovertemplate: trace.hovertemplate.replace("step %{customdata:,}", "step %{customdata}"),
    }
  }
}
