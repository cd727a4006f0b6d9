"""A result as one HTML file: sentence, figures, charts, findings, and all that draws them."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from app import words
from app.charts.figure import Figure
from app.charts.headline import JobState, Seen, headline
from app.charts.report_figures import KEYS, figures
from app.charts.report_findings import findings, ruled_out
from app.charts.report_parts import measured, stats, table
from app.charts.report_style import DRAW, STYLE, tokens
from app.charts.theme import DARK, LIGHT
from app.words import Hosts

Result = Mapping[str, Any]

# Nothing may be fetched: the file says the same in ten years, and on a machine without a network.
_CSP = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{csp}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
"""
_FOOT = """</main>
<script type="application/json" id="figures">{figures}</script>
<script>{script}</script>
<script>{draw}</script>
</body>
</html>
"""


def report(result: Result, *, state: JobState, hosts: Hosts, script: str) -> str:
    """The whole page; `script` is Plotly's, and is put into it."""
    name = words.contained(result["job"]["name"])
    drawn = {each.name: figures(result, hosts, each) for each in (LIGHT, DARK)}
    parts = [
        _HEAD.format(csp=_CSP, title=escape(f"{name} · Paceline"), style=tokens() + STYLE),
        _opening(result, state, name),
        stats(result),
        '<div class="panels"><div>',
        *(_card(key, *told) for key, told in drawn[LIGHT.name].items()),
        "</div><div>",
        findings(result),
        ruled_out(result),
        measured(result),
        "</div></div>",
        _FOOT.format(figures=_json(_plain(drawn)), script=script, draw=DRAW),
    ]
    return "\n".join(parts)


def _opening(result: Result, state: JobState, name: str) -> str:
    told = headline(state, result, Seen())
    job = result["job"]
    sizes = [("dp", job["dp_size"]), ("pp", job["pp_size"])]
    sizes += [
        (axis, job[f"{axis}_size"]) for axis in ("tp", "vpp", "dsp") if job[f"{axis}_size"] > 1
    ]
    shape = f" {words.TIMES} ".join(f"{axis} {words.whole(size)}" for axis, size in sizes)
    gpus = words.counted(job["world_size"], "GPU")
    return (
        f'<p class="crumbs"><b>{escape(name)}</b> {escape(shape)}, {gpus}</p>'
        f'<p class="state is-{state}">{state.replace("-", " ").capitalize()}</p>'
        f"<h1>{escape(told.sentence)}</h1><p>{escape(told.sub)}</p>"
    )


def _card(name: str, title: str, figure: Figure) -> str:
    told = figure["meta"]
    key = f'<p class="told">{escape(KEYS[name])}</p>' if name in KEYS else ""
    note = f'<p class="remark">{escape(told["note"])}</p>' if "note" in told else ""
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p class="told">{escape(told["text"])}</p>'
        f'{key}<div class="frame"><div class="plot" data-figure="{escape(name)}" role="img" '
        f'aria-label="{escape(told["text"])}"></div></div>{note}'
        f"<details><summary>Show table</summary>{table(told['table'])}</details></section>"
    )


def _plain(drawn: Mapping[str, Mapping[str, tuple[str, Figure]]]) -> dict[str, Any]:
    """Data and layout by theme and chart; what is said of them is in the page already."""
    return {
        theme: {
            key: {"data": figure["data"], "layout": figure["layout"]}
            for key, (_, figure) in by_key.items()
        }
        for theme, by_key in drawn.items()
    }


def _json(content: object) -> str:
    # Neither "</script>" nor "<!--" inside a text may mean anything to the page.
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
