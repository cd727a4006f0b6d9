"""One worker over steps and windows: the headline of its page, and its slowdown by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from app import formatting
from app.charts.base.figure import Cell, PlotlyFigure, axis, layout, meta
from app.charts.base.heatmap import Slowdowns
from app.charts.base.plotly import PlotlyLine, PlotlyTrace, line_between
from app.charts.base.step_axis import StepAxis, area_over_steps, line_over_steps
from app.charts.base.theme import SCALE_STOPS, Theme
from app.result.finding import Culprit, Finding
from app.result.window_result import WindowResult
from app.result.words import low_fidelity_words, sentence_case


def worker_headline(
    result: WindowResult | None, dp_rank: int, stage: int, host: str | None
) -> tuple[str, str]:
    """Headline of a worker in a window: its blame, and the slowdown it alone causes."""
    name = formatting.worker(dp_rank, stage, {(dp_rank, stage): host} if host else None)
    if result is None:
        return f"{name} is not measured yet.", "No complete step of this run has arrived."
    if not result.worker_slowdown:
        return f"{name} is not measured in this window.", "No step of it was complete."
    blame = _blame_sentence(findings_naming(result.findings or (), dp_rank, stage, host))
    if result.fidelity.verdict == "low":
        return blame or f"{name}: its part in the loss is withheld.", (
            f"{low_fidelity_words(result)[0].removesuffix('.')}: its slowdown would be a guess."
        )
    slowdown = result.worker_slowdown[dp_rank][stage]
    if slowdown is None:
        sub = "Nothing was recorded of it; its peers' median stands in for it."
        return blame or f"{name} is missing from this window.", sub
    alone = f"Alone it would slow the job to {formatting.ratio(slowdown)} of its ideal"
    position = _position_text(*position_of(result.worker_slowdown, dp_rank, stage))
    return blame or f"{name} is to blame for nothing that was found.", f"{alone}{position}."


def findings_naming(
    findings: Sequence[Finding], dp_rank: int, stage: int, host: str | None
) -> list[Finding]:
    """The findings that blame the worker, its stage, its replica or its host; costliest first."""
    return [
        finding
        for finding in findings
        if any(_blames(culprit, dp_rank, stage, host) for culprit in finding.culprits)
    ]


def position_of(
    worker_slowdown: Sequence[Sequence[float | None]], dp_rank: int, stage: int
) -> tuple[int, int]:
    """1 for the slowest of all workers with figures, and how many have them."""
    own = worker_slowdown[dp_rank][stage] or 0.0
    known = [ratio for ratio in chain.from_iterable(worker_slowdown) if ratio is not None]
    return 1 + sum(ratio > own for ratio in known), len(known)


def _blames(culprit: Culprit, dp_rank: int, stage: int, host: str | None) -> bool:
    if culprit.dp_rank is None and culprit.stage is None:
        return host is not None and culprit.host == host
    return culprit.dp_rank in (None, dp_rank) and culprit.stage in (None, stage)


def _blame_sentence(named: Sequence[Finding]) -> str:
    if not named:
        return ""
    isolated = formatting.bidi_isolated(named[0].sentence)
    first = formatting.with_times_sign(isolated).removesuffix(".")
    more = f" {formatting.plural(len(named) - 1, 'more cause')} found." if len(named) > 1 else ""
    return f"{sentence_case(first)}.{more}"


def _position_text(place: int, num_workers: int) -> str:
    if num_workers == 1:
        return ""
    if place == 1:
        return f"; none of the {formatting.count(num_workers)} workers costs more"
    others = "worker costs" if place == 2 else "workers cost"
    return f"; {formatting.count(place - 1)} of {formatting.count(num_workers)} {others} more"


_HEIGHT_PX = 236
_LEFT_PX = 56
_MIN_TOP = 1.2


@dataclass(frozen=True, slots=True)
class WorkerWindow:
    """A worker in one window: its slowdown and the median of the others, None if it is alone.

    `by_step` has both by position in `steps`, where the window's figures by step are known;
    `started_s` are the Unix times of these steps, as far as known.
    """

    window_id: str
    steps: Sequence[int]
    slowdown: float
    others: float | None
    by_step: Sequence[tuple[float, float | None]] | None = None
    started_s: Mapping[int, float | None] = field(default_factory=dict)


def worker_window(
    window_id: str,
    steps: Sequence[int],
    worker_slowdown: Slowdowns,
    dp_rank: int,
    stage: int,
    per_step: Slowdowns | None = None,
    started_s: Mapping[int, float | None] | None = None,
) -> WorkerWindow:
    """One worker's part of [dp, pp] slowdowns, and of those by step, [steps, dp, pp]."""
    slowdown, others = _own_and_others(np.asarray(worker_slowdown, float)[None], dp_rank, stage)[0]
    by_step = None
    if per_step is not None:
        by_step = _own_and_others(np.asarray(per_step, float), dp_rank, stage)
    return WorkerWindow(window_id, steps, slowdown, others, by_step, started_s or {})


def worker_history(windows: Sequence[WorkerWindow], name: str, *, theme: Theme) -> PlotlyFigure:
    """Slowdown by step where that is known, else a level line per window."""
    windows = [window for window in windows if np.isfinite(window.slowdown)]
    own, others = _series(windows)
    started_s = {step: at_s for window in windows for step, at_s in window.started_s.items()}
    at = StepAxis.over([step for window in windows for step in window.steps]).with_clock(started_s)
    highest = max([*_finite(own), *(other or 0.0 for other in others)], default=1.0)
    lowest = min([*_finite(own), 1.0])
    top = max(_MIN_TOP, 1 + 1.12 * (highest - 1))
    own_line: PlotlyLine = {"color": theme.rec, "width": 1.5}
    others_line: PlotlyLine = {"color": theme.sim, "width": 1.25, "dash": "dot"}
    ideal_line: PlotlyLine = {"color": theme.ok, "width": 1.75, "dash": "dash"}
    ideal = line_between((0, 1), (1.0, 1.0), ideal_line)
    return PlotlyFigure(
        data=[
            *_lost(at, own, theme),
            line_over_steps(
                at, others, "median of the others", others_line, formatting.TIMES, is_marked=False
            ),
            line_over_steps(at, own, "this worker", own_line, formatting.TIMES, is_marked=True),
        ],
        layout=layout(
            theme,
            height_px=_HEIGHT_PX + at.clock_px,
            left_px=_LEFT_PX,
            margin={"t": 24, "b": 44 + at.clock_px},
            hovermode="x",
            xaxis=at.x_axis(theme, has_title=True),
            yaxis=axis(
                theme,
                showgrid=True,
                nticks=5,
                tickformat=".2f",
                ticksuffix=f"{formatting.TIMES} ",
                range=[min(1 - 0.08 * (top - 1), lowest), top],
            ),
            shapes=[*at.bands(theme), ideal | {"xref": "paper"}],
            annotations=at.labels(theme),
        ),
        meta=meta(
            _sentence(windows, name),
            ["window", "first step", "last step", "this worker", "median of the others"],
            [_row(window) for window in windows],
            clock=at.clock,
        ),
    )


def _own_and_others(
    slowdown: NDArray[np.float64], dp_rank: int, stage: int
) -> list[tuple[float, float | None]]:
    own = slowdown[:, dp_rank, stage]
    flat = slowdown.reshape(len(slowdown), -1)
    others = np.delete(flat, dp_rank * slowdown.shape[2] + stage, axis=1)
    medians = [
        float(np.median(known)) if (known := row[np.isfinite(row)]).size else None for row in others
    ]
    return list(zip(own.tolist(), medians, strict=True))


def _series(windows: Sequence[WorkerWindow]) -> tuple[list[float], list[float | None]]:
    """Slowdown of the worker, and of the others, for every step."""
    pairs = [
        pair
        for window in windows
        for pair in window.by_step or [(window.slowdown, window.others)] * len(window.steps)
    ]
    return [own for own, _ in pairs], [others for _, others in pairs]


def _finite(values: Sequence[float]) -> list[float]:
    """Without the steps that the worker is missing from."""
    return [value for value in values if np.isfinite(value)]


def _lost(at: StepAxis, own: Sequence[float], theme: Theme) -> list[PlotlyTrace]:
    """The area above 1, where there is anything to see."""
    if max(_finite(own), default=1.0) < SCALE_STOPS[1]:
        return []
    upper = [max(1.0, slowdown) for slowdown in own]
    return [area_over_steps(at, upper, [1.0] * len(own), "lost", theme.lost_area)]


def _row(window: WorkerWindow) -> list[Cell]:
    others = formatting.measured(window.others, formatting.ratio)
    first, last = window.steps[0], window.steps[-1]
    return [window.window_id, first, last, formatting.ratio(window.slowdown), others]


def _sentence(windows: Sequence[WorkerWindow], name: str) -> str:
    if not windows:
        return f"No window of this run has figures of {name}."
    slowdowns = [window.slowdown for window in windows]
    over = formatting.plural(len(windows), "window")
    low, high = formatting.ratio(min(slowdowns)), formatting.ratio(max(slowdowns))
    to = high if low == high else f"between {low} and {high}"
    return f"Over {over}, {name} alone would slow the job to {to} of its ideal."
