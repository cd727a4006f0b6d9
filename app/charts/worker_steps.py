"""Worker by step: the slowest workers' slowdown in each step, under the step-time chart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app import words
from app.charts.figure import Along, Figure, Places, axis, integers, layout, meta, title
from app.charts.heatmap import gap_px, heatmap, on_axis
from app.charts.step_axis import StepAxis
from app.charts.step_events import StepEvent, lines
from app.charts.steps import LEFT_PX
from app.charts.theme import Theme
from app.words import Hosts

MAX_ROWS = 14

# What fits at the left of the plot, whose edge is that of the chart above.
_MAX_LABEL_CHARS = 22

# So little above 1 a worker looks like the ground.
_GROUND = 0.02

Floats = NDArray[np.float64]


def worker_steps(
    steps: Sequence[int],
    worker_slowdown: ArrayLike,
    *,
    hosts: Hosts | None,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> Figure:
    """Heatmap of the slowest workers by step.

    `worker_slowdown` is [step, dp rank, stage], one entry per step of `steps` (ascending; they
    may come from several windows). `at` is the axis of the chart above, whose x positions both
    charts then have.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    at = at or StepAxis.over(list(steps))
    rows = slowest(slowdown)
    labels = [_label(dp, stage, hosts, theme) for dp, stage in rows]
    told = meta(
        _sentence(slowdown, rows, hosts),
        ["worker", *(f"step {words.whole(step)}" for step in steps)],
        [
            [words.worker(dp, stage, hosts), *(_figure(s) for s in slowdown[:, dp, stage])]
            for dp, stage in rows
        ],
    )
    told["places"] = Places(
        x=at.along, y=Along(what="worker", items=[[dp, stage] for dp, stage in rows])
    )
    return Figure(
        data=[
            heatmap(_on_axis(steps, slowdown, rows, at), theme, **_cells(len(rows), at)),
        ],
        layout=layout(
            theme,
            height_px=14 * len(rows) + 52,
            left_px=LEFT_PX,
            margin={"t": 4, "b": 44},
            xaxis=at.x_axis(theme, title=title(at.title, theme)),
            yaxis=axis(
                theme,
                range=[len(rows) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=labels,
            ),
            shapes=[*at.bands(theme), *lines(events, at, theme)],
        ),
        meta=told,
    )


def slowest(slowdown: Floats) -> list[tuple[int, int]]:
    """The workers (dp rank, stage) with the highest mean slowdown, slowest first; 14 at most.

    Those that look like the ground come last, in the order of ranks: theirs would be noise.
    """
    num_known = np.isfinite(slowdown).sum(axis=0)
    total = np.nansum(slowdown, axis=0)
    mean = np.where(num_known > 0, total / np.maximum(num_known, 1), -np.inf)
    mean[(mean > -np.inf) & (mean <= 1 + _GROUND)] = 1.0
    order = np.argsort(-mean, axis=None, kind="stable")[:MAX_ROWS]
    return [divmod(int(index), slowdown.shape[2]) for index in order]


def _on_axis(
    steps: Sequence[int], slowdown: Floats, rows: Sequence[tuple[int, int]], at: StepAxis
) -> Floats:
    column = {step: index for index, step in enumerate(at.steps)}
    values = np.full((len(rows), len(at.steps)), np.nan)
    for index, step in enumerate(steps):
        if step in column:
            values[:, column[step]] = [slowdown[index, dp, stage] for dp, stage in rows]
    return on_axis(values, at)


def _cells(num_rows: int, at: StepAxis) -> dict[str, Any]:
    steps = [0 if index is None else at.steps[index] for index in at.columns]
    return {
        "x": at.edges,
        "y": list(range(num_rows)),
        "xgap": gap_px(2 * len(at.steps)),
        "ygap": 1,
        "customdata": integers(np.broadcast_to(steps, (num_rows, len(steps)))),
        # The label of a row is that of its tick: a text for each cell would be megabytes.
        "hovertemplate": "%{y}, step %{customdata:,}<br>"
        f"<b>%{{z:.3f}}{words.TIMES}</b><extra></extra>",
    }


def _label(dp_rank: int, stage: int, hosts: Hosts | None, theme: Theme) -> str:
    host = (hosts or {}).get((dp_rank, stage))
    who = f"dp {dp_rank} · s{stage}"
    if not host:
        return f"{who} "
    name = words.markup(host, most_chars=_MAX_LABEL_CHARS - len(who))
    return f'{who} <span style="color:{theme.ink3}">{name}</span> '


def _sentence(slowdown: Floats, rows: Sequence[tuple[int, int]], hosts: Hosts | None) -> str:
    if not rows or not slowdown.size:
        return "No step shown here has figures by worker."
    dp_rank, stage = rows[0]
    per_step = slowdown[:, dp_rank, stage]
    known = per_step[np.isfinite(per_step)]
    if not known.size:
        return "No worker is measured in the steps shown here."
    name, num_steps = words.worker(dp_rank, stage, hosts), words.counted(len(per_step), "step")
    low, high = words.ratio(known.min()), words.ratio(known.max())
    return (
        f"{name} is the slowest over {num_steps}: alone it would slow a step to between "
        f"{low} and {high} of its ideal."
    )


def _figure(slowdown: float) -> str:
    return words.ratio(slowdown) if np.isfinite(slowdown) else words.NOT_MEASURED
