"""Worker by step: the slowest workers' slowdown in each step, under the step-time chart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.charts import words
from app.charts.figure import Figure, axis, layout, meta, title
from app.charts.heatmap import gap_px, heatmap
from app.charts.step_axis import StepAxis
from app.charts.steps import LEFT_PX
from app.charts.theme import Theme
from app.charts.words import Hosts

MAX_ROWS = 14

# What fits at the left of the plot, whose edge is that of the chart above.
_MAX_LABEL_CHARS = 22

Floats = NDArray[np.float64]


def worker_steps(
    steps: Sequence[int],
    worker_slowdown: ArrayLike,
    *,
    hosts: Hosts | None,
    theme: Theme,
    axis_steps: Sequence[int] | None = None,
) -> Figure:
    """Heatmap of the slowest workers by step.

    `worker_slowdown` is [step, dp rank, stage], one entry per step of `steps` (ascending; they
    may come from several windows). `axis_steps` are the recorded steps of the chart above: given
    them, both charts have the same x positions.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    at = StepAxis.over(list(axis_steps) if axis_steps else list(steps))
    rows = slowest(slowdown)
    labels = [_label(dp, stage, hosts, theme) for dp, stage in rows]
    return Figure(
        data=[
            heatmap(_on_axis(steps, slowdown, rows, at), theme, **_cells(rows, at, hosts)),
        ],
        layout=layout(
            theme,
            height_px=14 * len(rows) + 52,
            left_px=LEFT_PX,
            margin={"t": 4, "b": 44},
            xaxis=at.x_axis(theme, title=title(_axis_title(at), theme)),
            yaxis=axis(
                theme,
                range=[len(rows) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=labels,
            ),
            shapes=at.bands(theme),
        ),
        meta=meta(
            _sentence(slowdown, rows, hosts),
            ["worker", *(f"step {words.whole(step)}" for step in steps)],
            [
                [words.worker(dp, stage, hosts), *(_figure(s) for s in slowdown[:, dp, stage])]
                for dp, stage in rows
            ],
        ),
    )


def slowest(slowdown: Floats) -> list[tuple[int, int]]:
    """The workers (dp rank, stage) with the highest mean slowdown, slowest first; 14 at most."""
    num_known = np.isfinite(slowdown).sum(axis=0)
    total = np.nansum(slowdown, axis=0)
    mean = np.where(num_known > 0, total / np.maximum(num_known, 1), -np.inf)
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
    return values


def _cells(rows: Sequence[tuple[int, int]], at: StepAxis, hosts: Hosts | None) -> dict[str, Any]:
    names = [words.markup(words.worker(dp, stage, hosts)) for dp, stage in rows]
    return {
        "x": list(at.position),
        "y": list(range(len(rows))),
        "xgap": gap_px(2 * len(at.steps)),
        "ygap": 1,
        "customdata": [
            [f"{name}, step {words.whole(step)}" for step in at.steps] for name in names
        ],
        "hovertemplate": f"%{{customdata}}<br><b>%{{z:.3f}}{words.TIMES}</b><extra></extra>",
    }


def _label(dp_rank: int, stage: int, hosts: Hosts | None, theme: Theme) -> str:
    host = (hosts or {}).get((dp_rank, stage))
    who = f"dp {dp_rank} · s{stage}"
    if not host:
        return f"{who} "
    name = words.markup(host, most_chars=_MAX_LABEL_CHARS - len(who))
    return f'{who} <span style="color:{theme.ink3}">{name}</span> '


def _axis_title(at: StepAxis) -> str:
    return "step, recorded ones only" if at.gaps else "step"


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
