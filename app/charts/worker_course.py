"""One worker's slowdown over steps and windows, and what is usual among the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from app import words
from app.charts.figure import Cell, Figure, axis, layout, meta, numbers, title
from app.charts.step_axis import StepAxis
from app.charts.theme import SCALE_STOPS, Theme

_HEIGHT_PX = 236
_LEFT_PX = 56
_MIN_TOP = 1.2
_MAX_MARKERS = 64


@dataclass(frozen=True, slots=True)
class WorkerWindow:
    """A worker in one window: its slowdown and the median of the others, None if it is alone.

    `by_step` has both for each of `steps`, where the window's figures by step are known.
    """

    window_id: str
    steps: Sequence[int]
    slowdown: float
    others: float | None
    by_step: Sequence[tuple[float, float | None]] | None = None


def worker_window(
    window_id: str,
    steps: Sequence[int],
    worker_slowdown: ArrayLike,
    dp_rank: int,
    stage: int,
    per_step: ArrayLike | None = None,
) -> WorkerWindow:
    """One worker's part of [dp, pp] slowdowns, and of those by step, [steps, dp, pp]."""
    slowdown, others = _own_and_others(np.asarray(worker_slowdown, float)[None], dp_rank, stage)[0]
    by_step = None
    if per_step is not None:
        by_step = _own_and_others(np.asarray(per_step, float), dp_rank, stage)
    return WorkerWindow(window_id, steps, slowdown, others, by_step)


def worker_course(windows: Sequence[WorkerWindow], name: str, *, theme: Theme) -> Figure:
    """Slowdown by step where that is known, else a level line for each window."""
    own, others = _series(windows)
    at = StepAxis.over([step for window in windows for step in window.steps])
    highest = max([*own, *(other or 0.0 for other in others)], default=1.0)
    lowest = min([*own, 1.0])
    top = max(_MIN_TOP, 1 + 1.12 * (highest - 1))
    return Figure(
        data=[
            *_lost(at, own, theme),
            _line(at, others, "median of the others", theme.sim, {"width": 1.25, "dash": "dot"}),
            _line(at, own, "this worker", theme.rec, {"width": 1.5}),
        ],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX,
            left_px=_LEFT_PX,
            margin={"t": 24, "b": 44},
            hovermode="x",
            xaxis=at.x_axis(theme, title=title(at.title, theme)),
            yaxis=axis(
                theme,
                showgrid=True,
                nticks=5,
                tickformat=".2f",
                ticksuffix=f"{words.TIMES} ",
                range=[min(1 - 0.08 * (top - 1), lowest), top],
            ),
            shapes=[*at.bands(theme), _level(1.0, theme)],
            annotations=at.labels(theme),
        ),
        meta=meta(
            _sentence(windows, name),
            ["window", "first step", "last step", "this worker", "median of the others"],
            [_row(window) for window in windows],
        ),
    )


def _own_and_others(
    slowdown: np.ndarray[Any, np.dtype[np.float64]], dp_rank: int, stage: int
) -> list[tuple[float, float | None]]:
    own = slowdown[:, dp_rank, stage]
    flat = slowdown.reshape(len(slowdown), -1)
    others = np.delete(flat, dp_rank * slowdown.shape[2] + stage, axis=1)
    medians = np.median(others, axis=1).tolist() if others.shape[1] else [None] * len(own)
    return list(zip(own.tolist(), medians, strict=True))


def _series(windows: Sequence[WorkerWindow]) -> tuple[list[float], list[float | None]]:
    """Of every step, the worker's slowdown and that of the others."""
    pairs = [
        pair
        for window in windows
        for pair in window.by_step or [(window.slowdown, window.others)] * len(window.steps)
    ]
    return [own for own, _ in pairs], [others for _, others in pairs]


def _line(
    at: StepAxis, values: Sequence[float | None], name: str, colour: str, line: dict[str, Any]
) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    told: list[str] = []
    for run in at.runs:
        # An empty point after each run keeps the line from crossing the gap.
        x += [at.position[index] for index in run] + [at.position[run[-1]] + 0.5]
        y += [values[index] for index in run] + [None]
        told += [words.whole(at.steps[index]) for index in run] + [""]
    few = len(at.steps) <= _MAX_MARKERS and "dash" not in line
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "marker": {"size": 4, "color": colour},
        "name": name,
        "x": numbers(x),
        "y": numbers(y),
        "customdata": told,
        "connectgaps": False,
        "line": {"color": colour} | line,
        "hovertemplate": f"step %{{customdata}}, {name}<br><b>%{{y:.3f}}{words.TIMES}</b>"
        "<extra></extra>",
    }


def _lost(at: StepAxis, own: Sequence[float], theme: Theme) -> list[dict[str, Any]]:
    """The area above 1, where there is anything to see."""
    if max(own, default=1.0) < SCALE_STOPS[1]:
        return []
    x: list[float | None] = []
    y: list[float | None] = []
    for run in at.runs:
        there = list(run)
        x += [at.position[index] for index in [*there, *reversed(there)]] + [None]
        y += [max(1.0, own[index]) for index in there] + [1.0] * len(there) + [None]
    area = {"type": "scatter", "mode": "lines", "name": "lost", "fill": "toself"}
    return [
        area
        | {"x": numbers(x), "y": numbers(y), "fillcolor": theme.lost_area, "line": {"width": 0}}
        | {"hoverinfo": "skip"}
    ]


def _level(y: float, theme: Theme) -> dict[str, Any]:
    line = {"color": theme.ok, "width": 1.75, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _row(window: WorkerWindow) -> list[Cell]:
    others = words.NOT_MEASURED if window.others is None else words.ratio(window.others)
    first, last = window.steps[0], window.steps[-1]
    return [window.window_id, first, last, words.ratio(window.slowdown), others]


def _sentence(windows: Sequence[WorkerWindow], name: str) -> str:
    if not windows:
        return f"No window of this run has figures of {name}."
    slowdowns = [window.slowdown for window in windows]
    over = words.counted(len(windows), "window")
    low, high = words.ratio(min(slowdowns)), words.ratio(max(slowdowns))
    to = high if low == high else f"between {low} and {high}"
    return f"Over {over}, {name} alone would slow the job to {to} of its ideal."
