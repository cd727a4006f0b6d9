"""A result as one self-contained HTML file: headline, figures, charts and findings.

The charts are those of the job's page that a result can draw, the leading one first. Colours
follow the reader's system; on paper they are light. Nothing is fetched when the file is opened.
"""

import json
from base64 import b64encode
from dataclasses import dataclass
from html import escape

from app import formatting
from app.charts.base.figure import DrawnFigure, PlotlyFigure
from app.charts.base.step_axis import StepAxis
from app.charts.base.theme import DARK, LIGHT, Theme
from app.charts.job.headline import JobFacts, JobState, headline
from app.charts.job.step_times import StepPoint, step_times
from app.charts.job.waits import has_material_waits
from app.charts.job.window_charts import WINDOW_CHARTS, ChartOptions
from app.charts.report.sections import findings, measured_steps, ruled_out, stats, table
from app.formatting import TIMES, Hosts
from app.result.causes import cause_of
from app.result.window_result import WindowResult


@dataclass(frozen=True, slots=True)
class Assets:
    """Plotly's script, compressed by gzip, and the font as WOFF2."""

    script_gz: bytes
    font: bytes


def script_data(assets: Assets) -> str:
    """The compressed script as data of the page; `LOADER` makes a script of it."""
    data = b64encode(assets.script_gz).decode()
    return f'<script type="text/plain" id="plotly">{data}</script>'


# Compressed the script is a third as long; browsers since 2023 decompress it themselves.
LOADER = """
async function loadPlotly() {
  const text = atob(document.getElementById("plotly").textContent)
  const packed = Uint8Array.from(text, (c) => c.charCodeAt(0))
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))
  const script = document.createElement("script")
  script.textContent = await new Response(stream).text()
  document.head.append(script)
}
"""


_TOKENS = ("surface", "well", "line", "line2", "ink", "ink2", "ink3", "lost", "ok", "accent")
# Colours of the page alone, which no chart needs.
_BACKGROUND = {LIGHT.name: "#F6F7F9", DARK.name: "#0D0F12"}


def css_variables() -> str:
    """The colours as CSS variables: dark where the reader's system is."""
    dark = f"@media screen and (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
    return f":root {{ color-scheme: light dark }} {_variables(LIGHT)} {dark}\n"


def _variables(theme: Theme) -> str:
    values = {name: getattr(theme, name) for name in _TOKENS} | {"bg": _BACKGROUND[theme.name]}
    return f":root {{ {' '.join(f'--{name}: {value};' for name, value in values.items())} }}"


STYLE = """
* { box-sizing: border-box }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 400 13px/20px Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
.figure, td { font-variant-numeric: tabular-nums }
main { max-width: 1440px; margin: 0 auto; padding: 24px }
h1 { max-width: 860px; margin: 4px 0; font-size: 24px; line-height: 32px; font-weight: 600;
  text-wrap: balance }
h2 { margin: 0 0 4px; font-size: 14px; line-height: 20px; font-weight: 600 }
h3 { margin: 0; font-size: 13px; line-height: 20px; font-weight: 600 }
p, dl { margin: 0 }
p, dd, dt, h1, h3 { overflow-wrap: anywhere }
b { font-weight: 600 }
.notice { margin-bottom: 16px; padding: 8px 12px; background: var(--well); border-radius: 8px;
  font-weight: 600; overflow-wrap: anywhere }
.crumbs { margin-bottom: 12px; color: var(--ink2) }
.crumbs b { margin-right: 8px; color: var(--ink) }
.state { font-weight: 600; color: var(--ink2) }
.state.is-straggling::before { content: "\\25B2\\00A0"; color: var(--lost) }
.state.is-healthy { color: var(--ok) }
.stats { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 1px;
  margin: 24px 0 16px; background: var(--line); border: 1px solid var(--line);
  border-radius: 8px; overflow: hidden }
.stats div { padding: 16px; background: var(--surface) }
.stats dt, .stats dd, .note, .sure, .remark { color: var(--ink2); font-size: 12px;
  line-height: 16px }
.stats dd { margin: 4px 0 0 }
.stats .figure.is-unknown { color: var(--ink2); font-size: 16px; font-weight: 400 }
.stats .figure:not(.is-unknown) { color: var(--ink); font-size: 24px;
  line-height: 32px; font-weight: 600 }
.panels { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px }
.card { min-width: 0; padding: 16px; background: var(--surface); border: 1px solid var(--line);
  border-radius: 8px; break-inside: avoid }
.plot { margin-top: 8px; min-width: 0 }
.remark { margin-top: 8px }
.findings ol { margin: 0; padding: 0; list-style: none }
.findings li { display: grid; grid-template-columns: 76px minmax(0, 80ch); gap: 12px;
  padding: 12px 0; border-top: 1px solid var(--line) }
.findings li:first-child { border-top: 0 }
.share { color: var(--ink2); font-size: 12px; line-height: 16px }
.share b { display: block; color: var(--ink); font-size: 16px; line-height: 20px }
.findings li p, .facts dt { color: var(--ink2) }
.facts { display: grid; grid-template-columns: minmax(90px, auto) minmax(0, 1fr); gap: 4px 16px;
  font-size: 12px; line-height: 16px }
.facts dd { margin: 0 }
.facts + h2 { margin-top: 16px }
.details > summary { min-height: 44px; font-size: 14px; line-height: 44px }
.details .panels { grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)) }
summary { width: fit-content; min-height: 24px; color: var(--accent); font-size: 12px;
  line-height: 24px; cursor: pointer }
.table { max-height: 320px; overflow: auto }
table { width: 100%; border-collapse: collapse; font-size: 12px; line-height: 16px }
th, td { padding: 6px 12px 6px 0; text-align: left; border-bottom: 1px solid var(--line) }
th { color: var(--ink2); font-weight: 400 }
caption { padding-bottom: 4px; color: var(--ink3); text-align: left }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
@media (width < 640px) { main { padding: 16px } h1 { font-size: 20px; line-height: 28px }
  .stats { grid-template-columns: repeat(2, minmax(0, 1fr)) }
  .stats .figure:not(.is-unknown) { font-size: 20px } }
@media print { @page { margin: 12mm } main { padding: 0 } .card summary { display: none }
  .details::details-content { content-visibility: visible; block-size: auto } }
"""

# As on the page: values stand in cells from 40 px on, gaps close where cells are slivers, and
# labels get short where the page is narrow. On paper colours are those of the light theme.
DRAW_SCRIPT = """
"use strict"
const figures = JSON.parse(document.getElementById("figures").textContent)
const dark = matchMedia("(prefers-color-scheme: dark)")
const narrow = 480
const gap = (cell) => (cell < 3 ? 0 : cell < 12 ? 1 : 3)
const fitted = (trace, cell) =>
  trace.type === "heatmap" ? { ...trace, xgap: Math.min(trace.xgap, gap(cell)) } : trace
const short = (label) => label.split(" <")[0].replace(/^stage /, "s")
function shortened(layout) {
  const { margin, xaxis, yaxis } = layout
  // As STEP_LEFT_PX of the page: labels of workers and ranks lose their hosts.
  const left = margin.l === 148 ? 72 : margin.l === 60 ? 28 : margin.l
  const every = Math.ceil((xaxis.tickvals?.length ?? 0) / 5)
  const kept = (_, at) => at % every === 0
  return {
    ...layout,
    margin: { ...margin, l: left, r: Math.min(margin.r, 56) },
    xaxis: every < 2 ? xaxis : { ...xaxis, tickvals: xaxis.tickvals.filter(kept),
      ticktext: xaxis.ticktext?.filter(kept) },
    yaxis: yaxis.ticktext ? { ...yaxis, ticktext: yaxis.ticktext.map(short) } : yaxis,
  }
}
function draw(theme = dark.matches ? "dark" : "light") {
  for (const plot of document.querySelectorAll("[data-figure]")) {
    const figure = figures[theme][plot.dataset.figure]
    const width = plot.clientWidth
    const layout = width < narrow ? shortened(figure.layout) : figure.layout
    const [from, to] = layout.xaxis?.range ?? [0, 1]
    const cell = (width - layout.margin.l - layout.margin.r) / (to - from)
    const shown = figure.data.filter((trace) => trace.name !== "values" || cell >= 40)
    const traces = shown.map((trace) => fitted(trace, cell))
    Plotly.react(plot, traces, { ...layout, width }, { displayModeBar: false })
  }
}
loadPlotly().then(() => {
  dark.addEventListener("change", () => draw())
  addEventListener("resize", () => draw())
  addEventListener("beforeprint", () => draw("light"))
  addEventListener("afterprint", () => draw())
  draw()
})
"""


_STEPS = "steps"
_WAITS = "waited-for"
_LOSSES = "waterfall"
_TITLES = {
    _LOSSES: "From ideal to recorded",
    "workers": "Which worker",
    _WAITS: "Waited for",
    _STEPS: "Step time",
    "worker-steps": "Worst workers by step",
    "dp-steps": "Step time over dp rank by step",
    "stages": "Stages",
    "optypes": "Where the loss is, by operation",
}
_SCALE_TEXT = f"Colours go from 1.0{TIMES} to 1.5{TIMES} and over, the same in every report."
# What lines and colours mean, where the picture itself does not say.
LEGENDS = {
    _LOSSES: "Shares of the recorded step. Hatched: no known cause.",
    _STEPS: "Solid: recorded. Dotted: simulated. Dashed: without stragglers. Area: time lost.",
    "workers": f"The slowdown if only this worker were slow. {_SCALE_TEXT} A cross: not measured.",
    "worker-steps": _SCALE_TEXT,
    _WAITS: "How long the other ranks waited for each rank at collectives. Colours go from 0 to "
    "half a step and over. Outlined: to blame.",
}
# Naming a worker, a stage or an operation by these would be a guess when fidelity is low.
_BLAMING = {_LOSSES, "workers", "worker-steps", "dp-steps", "stages", "optypes"}


def report_figures(
    result: WindowResult, hosts: Hosts, theme: Theme
) -> dict[str, tuple[str, PlotlyFigure]]:
    """Title and figure by the chart's name, in the order of the page."""
    setting = ChartOptions(theme, hosts, _axis(result))
    first = (_LOSSES, _leading_chart(result))
    return {
        key: (_TITLES[key], figure)
        for key in sorted(_TITLES, key=lambda key: key not in first)
        if (figure := _figure(key, result, setting)) is not None
    }


def _leading_chart(result: WindowResult) -> str:
    return cause_of(result.findings[0].cause).chart if result.findings else "workers"


def _axis(result: WindowResult) -> StepAxis:
    """The steps with their times in UTC, which all charts over steps share."""
    started_s = dict(zip(result.steps, result.step_started_s, strict=False))
    return StepAxis.over(result.steps).with_clock(started_s)


def _figure(key: str, result: WindowResult, setting: ChartOptions) -> PlotlyFigure | None:
    if key == _STEPS:
        return step_times(_points(result), theme=setting.theme, at=setting.axis)
    chart = WINDOW_CHARTS[key]
    is_left_out = (
        (key in _BLAMING and result.fidelity.verdict == "low")
        # It says something where lengths are uneven, and little elsewhere.
        or (key == "dp-steps" and _leading_chart(result) != key)
        or (key == "stages" and result.job.pp_size == 1)
        or (key == _WAITS and not has_material_waits(result))
    )
    can_draw = not is_left_out and chart.can_draw(result) and chart.has_steps(result)
    return chart.draw(result, setting) if can_draw else None


def _points(result: WindowResult) -> list[StepPoint]:
    times = result.step_time_s
    measured = map(StepPoint, result.steps, times.recorded, times.simulated, times.ideal)
    skipped = (
        StepPoint(record.step, None, None, None, record.reason) for record in result.skipped_steps
    )
    return sorted([*measured, *skipped], key=lambda point: point.step)


# Nothing may be fetched: the file has to work offline, and in ten years.
_CSP = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
_OWN_POLICY = f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">'
_NO_ROBOTS = '<meta name="robots" content="noindex, nofollow">'
_PAGE_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
"""
_PAGE_FOOT = """</main>
<script type="application/json" id="figures">{figures}</script>
{script}
<script>{draw}</script>
</body>
</html>
"""


def html_report(result: WindowResult, *, state: JobState, hosts: Hosts, assets: Assets) -> str:
    """The whole page, in the order of the job's page, with all that it needs inside."""
    return _page(
        result,
        state,
        hosts,
        head=_OWN_POLICY,
        font_address=f"data:font/woff2;base64,{b64encode(assets.font).decode()}",
        script=script_data(assets),
        draw=LOADER + DRAW_SCRIPT,
    )


# The script of a served page is loaded before this.
SERVED_DRAW_SCRIPT = f"\nconst loadPlotly = async () => {{}}{DRAW_SCRIPT}"


def served_report(
    result: WindowResult,
    *,
    state: JobState,
    hosts: Hosts,
    notice: str,
    script_address: str,
    font_address: str,
) -> str:
    """The same page under a `notice`, small, as a server shows it.

    Plotly's script and the font are loaded from the server, which sends the policy as a header.
    """
    return _page(
        result,
        state,
        hosts,
        head=_NO_ROBOTS,
        font_address=font_address,
        script=f'<script src="{escape(script_address)}"></script>',
        draw=SERVED_DRAW_SCRIPT,
        notice=notice,
    )


def _page(
    result: WindowResult,
    state: JobState,
    hosts: Hosts,
    *,
    head: str,
    font_address: str,
    script: str,
    draw: str,
    notice: str = "",
) -> str:
    name = formatting.bidi_isolated(result.job.name)
    drawn = {theme.name: report_figures(result, hosts, theme) for theme in (LIGHT, DARK)}
    # Data and layout by theme and chart: what is said of them is in the page already.
    figures = {
        theme: {
            key: DrawnFigure(data=figure["data"], layout=figure["layout"])
            for key, (_, figure) in by_key.items()
        }
        for theme, by_key in drawn.items()
    }
    # Neither "</script>" nor "<!--" inside a text may mean anything to the page.
    figures_text = json.dumps(figures, allow_nan=False, separators=(",", ":"))
    figures_text = figures_text.replace("<", "\\u003c")
    font = (
        "@font-face { font-family: Inter; font-weight: 100 900; "
        f"src: url({font_address}) format('woff2') }}\n"
    )
    style = font + css_variables() + STYLE
    parts = [
        _PAGE_HEAD.format(policy=head, title=escape(f"{name} · Paceline"), style=style),
        f'<p class="notice">{escape(notice)}</p>' if notice else "",
        _opening(result, state, name),
        stats(result),
        '<div class="panels">',
        findings(result),
        *(_card(key, *card) for key, card in drawn[LIGHT.name].items()),
        '<details class="details"><summary>Details: data used, causes ruled out</summary>',
        '<div class="panels">',
        measured_steps(result),
        ruled_out(result),
        "</div></details></div>",
        _PAGE_FOOT.format(figures=figures_text, script=script, draw=draw),
    ]
    return "\n".join(parts)


def _opening(result: WindowResult, state: JobState, name: str) -> str:
    text, job = headline(state, result, JobFacts()), result.job
    others = (("tp", job.tp_size), ("vpp", job.vpp_size), ("dsp", job.dsp_size))
    sizes = [("dp", job.dp_size), ("pp", job.pp_size)]
    sizes += [(axis, size) for axis, size in others if size > 1]
    shape = f" {formatting.TIMES} ".join(f"{axis} {formatting.count(size)}" for axis, size in sizes)
    gpus = formatting.plural(job.world_size, "GPU")
    return (
        f'<p class="crumbs"><b>{escape(name)}</b> {escape(shape)}, {gpus}</p>'
        f'<p class="state is-{state}">{state.replace("-", " ").capitalize()}</p>'
        f"<h1>{escape(text.sentence)}</h1><p>{escape(text.sub)}</p>"
    )


def _card(name: str, title: str, figure: PlotlyFigure) -> str:
    figure_meta = figure["meta"]
    key = f'<p class="note">{escape(LEGENDS[name])}</p>' if name in LEGENDS else ""
    note = f'<p class="remark">{escape(figure_meta["note"])}</p>' if "note" in figure_meta else ""
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p class="note">'
        f"{escape(figure_meta['text'])}</p>"
        f'{key}<div class="plot" data-figure="{escape(name)}" role="img" '
        f'aria-label="{escape(figure_meta["text"])}"></div>{note}'
        f"<details><summary>Show table</summary>{table(figure_meta['table'])}</details></section>"
    )
