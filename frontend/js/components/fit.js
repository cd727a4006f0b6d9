/** What only the browser knows about a figure: how wide it is drawn. */

const NARROW_PX = 480
const MIN_VALUE_CELL_PX = 40
const STEP_LEFT_PX = 148
const NARROW_STEP_LEFT_PX = 64

/**
 * A figure fitted to a width: gaps and values of cells by their pixels, short labels when narrow.
 *
 * With `isAbove` another chart of the card stands under it and has the same axis, labelled there.
 */
export function fit(figure, width_px, isAbove) {
  const layout = { ...figure.layout, margin: { ...figure.layout.margin }, width: width_px }
  if (width_px < NARROW_PX) shorten(layout)
  if (isAbove) hideSteps(layout)
  const plot_px = width_px - layout.margin.l - layout.margin.r
  const [from, to] = layout.xaxis.range
  const cell_px = plot_px / (to - from)
  const data = figure.data
    .filter((trace) => trace.name !== "values" || cell_px >= MIN_VALUE_CELL_PX)
    .map((trace) => (trace.type === "heatmap" ? fitCells(trace, cell_px) : trace))
    .map((trace) => (trace.meta?.short && width_px < NARROW_PX ? { ...trace, text: trace.meta.short } : trace))
  return { data, layout }
}

function fitCells(trace, cell_px) {
  return { ...trace, xgap: Math.min(trace.xgap, cell_px < 3 ? 0 : cell_px < 12 ? 1 : 3) }
}

function hideSteps(layout) {
  layout.height -= layout.margin.b - 4
  layout.margin.b = 4
  layout.xaxis = { ...layout.xaxis, showticklabels: false }
}

function shorten(layout) {
  const labels = layout.yaxis.ticktext
  if (layout.margin.l === STEP_LEFT_PX) {
    layout.margin.l = NARROW_STEP_LEFT_PX
    if (labels) layout.yaxis = { ...layout.yaxis, ticktext: labels.map((label) => label.split(" <")[0]) }
  } else if (labels?.[0]?.startsWith("stage ") && layout.margin.l === 60) {
    layout.margin.l = 28
    layout.yaxis = { ...layout.yaxis, ticktext: labels.map((label) => label.replace("stage ", "s")) }
  }
  if (layout.xaxis.tickvals?.length > 5) layout.xaxis = thinned(layout.xaxis)
}

function thinned(axis) {
  const every = Math.ceil(axis.tickvals.length / 5)
  const keep = (_, index) => index % every === 0
  return { ...axis, tickvals: axis.tickvals.filter(keep), ticktext: axis.ticktext?.filter(keep) }
}
