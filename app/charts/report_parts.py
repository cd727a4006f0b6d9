"""What a report says beside its charts: figures, what was measured, and tables."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from app import words
from app.charts.figure import Cell, Table
from app.engine.metrics import MAX_DISCREPANCY

Result = Mapping[str, Any]
Row = tuple[str, str, str]

_MAX_SKIPPED = 12


def stats(result: Result) -> str:
    """The strip of figures, each with what it means."""
    cells = "".join(
        f'<div><dt>{escape(label)}</dt><dd class="figure">{escape(figure)}</dd>'
        f"<dd>{escape(note)}</dd></div>"
        for label, figure, note in _stat_rows(result)
    )
    return f'<dl class="stats">{cells}</dl>'


def _stat_rows(result: Result) -> list[Row]:
    recorded, ideal = (_mean_s(result, name) for name in ("recorded", "ideal"))
    last_stage = len(result["stage_share"]) - 1
    alone = f"stage {last_stage} alone: {_share(result['m_s'])}"
    return [
        (
            "Slowdown",
            words.ratio(result["slowdown"]),
            f"recorded {recorded} a step, {ideal} without stragglers",
        ),
        ("GPU time wasted", words.percent(result["gpu_time_wasted"]), "1 - 1 / slowdown"),
        ("Lost in these steps", f"{result['gpu_hours_lost']:z,.3g} GPU-h", _steps(result)),
        ("Won back by the slowest 3 %", _share(result["m_w"]), alone),
        _fidelity(result),
        _clocks(result),
    ]


def _mean_s(result: Result, name: str) -> str:
    times = result["step_time_s"][name]
    return words.seconds(sum(times) / len(times))


def _fidelity(result: Result) -> Row:
    fidelity = result["fidelity"]
    word = "low, over the" if fidelity["verdict"] == "low" else "good,"
    off = f"{words.percent(fidelity['discrepancy'])} off"
    return "Fidelity", off, f"{word} limit {words.percent(MAX_DISCREPANCY)}"


def _clocks(result: Result) -> Row:
    clocks = result.get("clocks") or {}
    residual_ms = clocks.get("residual_ms")
    known = words.NOT_MEASURED if residual_ms is None else f"{residual_ms:.2g} ms"
    return "Clock residual", known, clocks.get("reason") or "after correction"


def measured(result: Result) -> str:
    """Which steps the figures are of, and which were left out."""
    skipped = [
        f"step {words.whole(each['step'])}: {words.contained(each['reason'])}"
        for each in result["skipped_steps"]
    ]
    more = len(skipped) - _MAX_SKIPPED
    rest = [f"and {words.whole(more)} more"] if more > 0 else []
    left_out = "; ".join([*skipped[:_MAX_SKIPPED], *rest]) or "none"
    rows = [("Steps", _steps(result)), ("Left out", left_out)]
    return f'<section class="card"><h2>What was measured</h2>{facts(rows)}</section>'


def _steps(result: Result) -> str:
    steps = result["steps"]
    first, last = words.whole(steps[0]), words.whole(steps[-1])
    stretch = f"{first} to {last}" if len(steps) > 1 else f"step {first}"
    return f"{words.counted(len(steps), 'step')}, {stretch}"


def table(content: Table) -> str:
    """A chart's figures for who cannot see it."""
    caption = f"<caption>{escape(content['caption'])}</caption>" if "caption" in content else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in content["columns"])
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in content["rows"])
    return f'<div class="table"><table>{caption}<tr>{head}</tr>{rows}</table></div>'


def _cell(value: Cell) -> str:
    return f"<td>{'' if value is None else escape(words.contained(str(value)))}</td>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and their values; those without one are left out."""
    told = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
    return f'<dl class="facts">{"".join(told)}</dl>'


def _share(share: float | None) -> str:
    return words.NOT_MEASURED if share is None else words.percent(share)
