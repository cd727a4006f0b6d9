"""Which worker: the slowdown that each one alone would give the job, as a heatmap."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app import words
from app.charts.figure import Cell, Figure, Meta, layout, meta
from app.charts.heatmap import gap_px, heatmap
from app.charts.theme import Theme
from app.charts.worker_axes import MAX_DP_WITH_NAMES, dp_axis, stage_axis
from app.charts.worker_grid import Sort, WorkerGrid
from app.charts.worker_marks import VALUES, callout, crosses, outline, values
from app.words import Hosts

__all__ = ["VALUES", "Sort", "workers", "worst"]

Floats = NDArray[np.float64]

# Below this a worker looks like the ground, so pointing at it would point at noise.
MIN_CULPRIT_SLOWDOWN = 1.02

# A worker with this share of the slowest one's excess is about as slow.
_AS_SLOW = 0.67

# Values are written into cells that are about 40 px wide in the lead panel.
MAX_DP_WITH_VALUES = 16
_TOP_PX = 32
_TOP_WITHOUT_LABEL_PX = 8

# More outlines would be a pattern of their own.
MAX_OUTLINED = 32

# A table of a whole large job would outweigh its picture.
MAX_TABLE_ROWS = 500


def workers(
    worker_slowdown: ArrayLike,
    *,
    hosts: Hosts | None,
    theme: Theme,
    sort: Sort = "rank",
    silent: Sequence[tuple[int, int]] = (),
    named: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Heatmap of worker slowdowns [dp rank, stage], who is to blame outlined and named.

    That are the workers (dp rank, stage) in `named`; where nobody has looked for causes (None), it
    is the slowest one, unless most of its stage is about as slow. Columns are in the order of dp
    ranks, of their hosts' names, or of their slowest workers. Cells that are None or not finite
    are not measured and drawn as a cross; `silent` workers have one over their colour. Of large
    jobs several workers share a cell, which shows the slowest.
    """
    slowdown = np.asarray(worker_slowdown, dtype=np.float64)
    grid = WorkerGrid.of(slowdown, sort, hosts)
    culprits = _culprits(slowdown, named)
    culprit = culprits[0] if culprits else None
    row_px = _row_px(len(grid.rows))
    top_px = _TOP_PX if culprit else _TOP_WITHOUT_LABEL_PX
    is_named = len(grid.columns) <= MAX_DP_WITH_NAMES and sort != "host"
    bottom_px = 28 if is_named else 44
    has_values = len(grid.columns) <= MAX_DP_WITH_VALUES
    data = [heatmap(grid.values, theme, **_cells(grid, hosts)), crosses(grid, silent, theme)]
    if has_values:
        data.append(values(grid, theme, silent))
    shapes, notes = [], []
    if culprit:
        alone = float(slowdown[culprit])
        shapes = [outline(grid, each, float(slowdown[each]), theme) for each in culprits]
        notes = [
            callout(
                grid, culprit, alone,
                num_others=len(culprits) - 1,
                row_px=row_px, has_values=has_values, hosts=hosts, theme=theme,
            )
        ]  # fmt: skip
    return Figure(
        data=data,
        layout=layout(
            theme,
            height_px=top_px + row_px * len(grid.rows) + bottom_px,
            left_px=60,
            margin={"t": top_px, "b": bottom_px},
            xaxis=dp_axis(grid, sort, hosts, theme),
            yaxis=stage_axis(grid, theme),
            shapes=shapes,
            annotations=notes,
        ),
        meta=_told(slowdown, grid, _sentence(slowdown, culprits, hosts, named), hosts),
    )


def worst(slowdown: Floats) -> tuple[int, int] | None:
    """The slowest worker (dp rank, stage), or None when none stands out from the ground."""
    known = np.where(np.isfinite(slowdown), slowdown, -np.inf)
    if known.size == 0 or known.max() < MIN_CULPRIT_SLOWDOWN:
        return None
    dp_rank, stage = np.unravel_index(known.argmax(), known.shape)
    return int(dp_rank), int(stage)


def _culprits(slowdown: Floats, named: Sequence[tuple[int, int]] | None) -> list[tuple[int, int]]:
    """Who is outlined, the slowest first."""
    if named is None:
        alone = _alone(slowdown, worst(slowdown))
        return [] if alone is None else [alone]
    known = [each for each in named if np.isfinite(slowdown[each])]
    return sorted(known, key=lambda each: (-slowdown[each], each))[:MAX_OUTLINED]


def _alone(slowdown: Floats, slowest: tuple[int, int] | None) -> tuple[int, int] | None:
    """The slowest worker, unless most of its stage is about as slow: then nobody is to blame."""
    if slowest is None or slowdown.shape[0] < 2:
        return slowest
    others = np.delete(slowdown[:, slowest[1]], slowest[0])
    is_as_slow = others - 1 > _AS_SLOW * (slowdown[slowest] - 1)
    return None if is_as_slow.mean() >= 0.5 else slowest


def _told(slowdown: Floats, grid: WorkerGrid, sentence: str, hosts: Hosts | None) -> Meta:
    told = meta(
        sentence,
        ["dp rank", "stage", "host", "slowdown"],
        _rows(slowdown, hosts),
    )
    told["places"] = grid.places
    if slowdown.size > MAX_TABLE_ROWS:
        told["table"]["caption"] = _caption(slowdown.size)
    return told


def _cells(grid: WorkerGrid, hosts: Hosts | None) -> dict[str, Any]:
    num_rows, num_columns = grid.values.shape
    parts: dict[str, Any] = {
        "xgap": gap_px(num_columns),
        "ygap": gap_px(max(num_rows, num_columns)),
        "hovertemplate": _hover("dp %{x}, stage %{y}"),
    }
    if hosts or grid.is_thinned or not grid.is_by_rank:
        host = _host_names(hosts or {})
        parts["customdata"] = [
            [_who(ranks, stages, host if hosts else None) for ranks in grid.columns]
            for stages in grid.rows
        ]
        parts["hovertemplate"] = _hover("%{customdata}")
    return parts


def _host_names(hosts: Hosts) -> Callable[[int, int], str]:
    """Host of a worker, ready for a label; each name is made so once."""
    marked = cache(words.markup)

    def name(dp_rank: int, stage: int) -> str:
        found = hosts.get((dp_rank, stage))
        return marked(found) if found else "host not known"

    return name


def _who(ranks: tuple[int, ...], stages: range, host: Callable[[int, int], str] | None) -> str:
    if len(ranks) == 1 and len(stages) == 1:
        name = f"dp {ranks[0]}, stage {stages[0]}"
        return name if host is None else f"{name}, {host(ranks[0], stages[0])}"
    return f"the slowest of dp {_several(ranks)}, stage {_several(stages)}"


def _several(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(each) for each in numbers[:4]) + (" ..." if len(numbers) > 4 else "")


def _hover(who: str) -> str:
    return f"{who}<br><b>%{{z:.3f}}{words.TIMES}</b><extra></extra>"


def _row_px(num_rows: int) -> int:
    return 40 if num_rows <= 4 else 26 if num_rows <= 10 else max(8, 260 // num_rows)


def _sentence(
    slowdown: Floats,
    culprits: Sequence[tuple[int, int]],
    hosts: Hosts | None,
    named: Sequence[tuple[int, int]] | None,
) -> str:
    if culprits:
        return f"{_would_slow(slowdown, culprits[0], hosts)} of its ideal."
    slowest = worst(slowdown)
    if slowest is None:
        return f"None of {words.counted(slowdown.size, 'worker')} stands out."
    if named is None or _alone(slowdown, slowest) is None:
        up_to = words.ratio(float(slowdown[slowest]))
        return (
            f"Most workers of stage {slowest[1]} are slow, each alone up to {up_to}; "
            "none stands out."
        )
    return f"{_would_slow(slowdown, slowest, hosts)}; no finding names it."


def _would_slow(slowdown: Floats, worker: tuple[int, int], hosts: Hosts | None) -> str:
    alone = words.ratio(float(slowdown[worker]))
    return f"{words.worker(*worker, hosts)} alone would slow the job to {alone}"


def _rows(slowdown: Floats, hosts: Hosts | None) -> list[list[Cell]]:
    known = hosts or {}
    order = np.argsort(-np.nan_to_num(slowdown, nan=-np.inf), axis=None, kind="stable")
    return [
        [dp, stage, known.get((dp, stage)), _figure(float(slowdown[dp, stage]))]
        for dp, stage in (divmod(int(index), slowdown.shape[1]) for index in order[:MAX_TABLE_ROWS])
    ]


def _caption(num_workers: int) -> str:
    return f"The slowest {MAX_TABLE_ROWS} of {words.whole(num_workers)} workers."


def _figure(slowdown: float) -> str:
    return words.ratio(slowdown) if np.isfinite(slowdown) else words.NOT_MEASURED
