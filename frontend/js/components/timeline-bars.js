/** The bars of a timeline's figure: where each is, and which is beside which. */

/** Every bar that stands for an operation: `{run, stage, optype, seqId, start, end, y, height}`. */
export function barsOf(figure) {
  return figure.data.filter((trace) => trace.type === "bar" && trace.customdata).flatMap(barsOfTrace)
}

/** The bar of an operation; undefined where it is not drawn, or is one with others. */
export function findBar(bars, { run, stage, optype, seqId }) {
  return bars.find((bar) => bar.run === run && bar.stage === stage && bar.optype === optype && bar.seqId === seqId)
}

/** The bar that an arrow key leads to; the same one at the edge. */
export function beside(bars, bar, key) {
  const single = bars.filter((other) => other.optype)
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const lane = single.filter((other) => other.y === bar.y).sort((a, b) => a.start - b.start)
    const at = lane.findIndex((other) => other.start === bar.start)
    return lane[at + (key === "ArrowRight" ? 1 : -1)] ?? bar
  }
  const lanes = [...new Set(single.map((other) => other.y))].sort((a, b) => a - b)
  const y = lanes[lanes.indexOf(bar.y) + (key === "ArrowDown" ? 1 : -1)]
  const middle = (bar.start + bar.end) / 2
  const off = (other) => Math.max(other.start - middle, middle - other.end, 0)
  return single.filter((other) => other.y === y).sort((a, b) => off(a) - off(b))[0] ?? bar
}

/** The line trace that marks a bar. */
export function markOf({ start, end, y, height }) {
  const half = height / 2 + 1
  return {
    type: "scatter",
    mode: "lines",
    name: "selected",
    x: [start, end, end, start, start],
    y: [y - half, y - half, y + half, y + half, y - half],
    fill: "none",
    hoverinfo: "skip",
    line: { color: getComputedStyle(document.documentElement).getPropertyValue("--accent").trim(), width: 3 },
  }
}

function barsOfTrace({ base, x, y, width, customdata }) {
  const [starts, lengths, middles] = [base, x, y].map(unpacked)
  return customdata.map(([, run, stage, optype, seqId], at) => ({
    run,
    stage,
    optype,
    seqId,
    start: starts[at],
    end: starts[at] + lengths[at],
    y: middles[at],
    height: width,
  }))
}

/** Plotly's packed numbers, or a plain list as it is. */
function unpacked(array) {
  if (Array.isArray(array)) return array
  const bytes = Uint8Array.from(atob(array.bdata), (character) => character.charCodeAt(0))
  return new Float64Array(bytes.buffer)
}
