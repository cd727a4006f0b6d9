"""How a report looks, in both themes, and the few lines that draw its charts."""

from app.charts.theme import DARK, LIGHT, Theme

_NAMES = ("surface", "well", "line", "line2", "ink", "ink2", "ink3", "lost", "ok", "accent")
# Colours of the page alone, which no chart needs.
_GROUND = {LIGHT.name: "#F6F7F9", DARK.name: "#0D0F12"}


def tokens() -> str:
    """The colours as CSS variables: dark where the reader's system is."""
    dark = f"@media (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
    return f":root {{ color-scheme: light dark }} {_variables(LIGHT)} {dark}\n"


def _variables(theme: Theme) -> str:
    values = {name: getattr(theme, name) for name in _NAMES} | {"bg": _GROUND[theme.name]}
    return f":root {{ {' '.join(f'--{name}: {value};' for name, value in values.items())} }}"


STYLE = """
* { box-sizing: border-box }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 400 13px/20px Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums }
main { max-width: 1440px; margin: 0 auto; padding: 24px }
h1 { max-width: 860px; margin: 4px 0; font-size: 24px; line-height: 32px; font-weight: 600;
  text-wrap: balance }
h2 { margin: 0 0 4px; font-size: 14px; line-height: 20px; font-weight: 600 }
h3 { margin: 0; font-size: 13px; line-height: 20px; font-weight: 600 }
p, dl { margin: 0 }
p, dd, dt, h1, h3 { overflow-wrap: anywhere }
b { font-weight: 600 }
.crumbs { margin-bottom: 12px; color: var(--ink2) }
.crumbs b { margin-right: 8px; color: var(--ink) }
.state { font-weight: 600; color: var(--ink2) }
.state.is-straggling { color: var(--lost) }
.state.is-healthy { color: var(--ok) }
.stats { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 1px;
  margin: 24px 0 16px; background: var(--line); border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden }
.stats div { padding: 16px; background: var(--surface) }
.stats dt, .stats dd, .told, .sure, .remark { color: var(--ink2); font-size: 12px;
  line-height: 16px }
.stats dd { margin: 4px 0 0 }
.stats .figure { color: var(--ink); font-size: 24px; line-height: 32px; font-weight: 600 }
.panels { display: grid; grid-template-columns: minmax(0, 8fr) minmax(0, 4fr); gap: 16px;
  align-items: start }
.panels > div { display: grid; gap: 16px; min-width: 0 }
.card { min-width: 0; padding: 16px; background: var(--surface); border: 1px solid var(--line);
  border-radius: 8px; break-inside: avoid }
.frame { margin-top: 8px; overflow-x: auto }
.plot { min-width: 480px }
.remark { margin-top: 8px }
.findings ol { margin: 0; padding: 0; list-style: none }
.findings li { display: grid; grid-template-columns: 76px minmax(0, 1fr); gap: 12px;
  padding: 12px 0; border-top: 1px solid var(--line) }
.findings li:first-child { border-top: 0 }
.share { color: var(--ink2); font-size: 12px; line-height: 16px }
.share b { display: block; color: var(--ink); font-size: 16px; line-height: 20px }
.findings li p, .facts dt { color: var(--ink2) }
.facts { display: grid; grid-template-columns: minmax(90px, auto) minmax(0, 1fr); gap: 4px 16px;
  font-size: 12px; line-height: 16px }
.facts dd { margin: 0 }
.facts + h2 { margin-top: 16px }
summary { width: fit-content; min-height: 24px; color: var(--accent); font-size: 12px;
  line-height: 24px; cursor: pointer }
.table { max-height: 320px; overflow: auto }
table { width: 100%; border-collapse: collapse; font-size: 12px; line-height: 16px }
th, td { padding: 6px 12px 6px 0; text-align: left; border-bottom: 1px solid var(--line) }
th { color: var(--ink2); font-weight: 400 }
caption { padding-bottom: 4px; color: var(--ink3); text-align: left }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
@media (width < 1200px) { .panels { grid-template-columns: minmax(0, 1fr) }
  .panels > div { display: contents } .card { order: 2 }
  .panels > div:first-child > .card:first-child { order: 0 } .card.findings { order: 1 } }
@media (width < 640px) { main { padding: 16px } h1 { font-size: 20px; line-height: 28px }
  .stats { grid-template-columns: repeat(2, minmax(0, 1fr)) } .stats .figure { font-size: 20px } }
@media print { .frame { overflow: visible } summary { display: none } }
"""

# Values stand in cells from 40 px on, and gaps close where cells are slivers, as on the page.
DRAW = """
"use strict"
const figures = JSON.parse(document.getElementById("figures").textContent)
const dark = matchMedia("(prefers-color-scheme: dark)")
const gap = (cell) => (cell < 3 ? 0 : cell < 12 ? 1 : 3)
const fitted = (trace, cell) =>
  trace.type === "heatmap" ? { ...trace, xgap: Math.min(trace.xgap, gap(cell)) } : trace
function draw() {
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const { data, layout } = figures[dark.matches ? "dark" : "light"][plot.dataset.figure]
    const width = plot.clientWidth
    const [from, to] = layout.xaxis?.range ?? [0, 1]
    const cell = (width - layout.margin.l - layout.margin.r) / (to - from)
    const shown = data.filter((trace) => trace.name !== "values" || cell >= 40)
    const traces = shown.map((trace) => fitted(trace, cell))
    Plotly.react(plot, traces, { ...layout, width }, { displayModeBar: false })
  }
}
dark.addEventListener("change", draw)
addEventListener("resize", draw)
draw()
"""
