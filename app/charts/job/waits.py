"""Waits of ranks for each other: figures of each rank, sentences, and a heatmap by step.

`remarks` covers what no finding does: low coverage, unexplained waiting, a late rank.
The heatmap has milliseconds by rank and step. docs/arrivals.md defines the figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app import formatting
from app.charts.base.figure import (
    AxisItems,
    Cell,
    ItemsByAxis,
    PlotlyFigure,
    axis,
    layout,
    meta,
    title,
)
from app.charts.base.heatmap import heatmap, row_label, step_cells, values_on_axis
from app.charts.base.step_axis import StepAxis, StepEvent, add_clock, event_lines
from app.charts.base.theme import SCALE_MAX, SCALE_MIN, Theme
from app.charts.job.step_times import LEFT_PX
from app.result.step_counts import mean_s

Result = Mapping[str, Any]

# Above this share of the step, waiting is said and shown even where no cause is found.
MATERIAL_SHARE = 0.05
# Where operations cover less of the step, nothing can be ruled out.
MIN_COVERAGE = 0.6

_ZERO_IF_UNKNOWN = ("waited_for_s", "waited_s", "late_share")
_RANK_COLUMNS = ("rank", "dp_rank", "stage", "host", "local_rank", "own_delay_s", *_ZERO_IF_UNKNOWN)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank that recorded collectives; times in seconds a step, `share` is of the step.

    `is_culprit` says whether arrivals alone, or some finding, blames it.
    """

    rank: int
    dp_rank: int | None
    stage: int | None
    host: str | None
    local_rank: int | None
    waited_for_s: float
    waited_s: float
    share: float
    late_share: float
    own_delay_s: float | None
    is_culprit: bool

    @property
    def place(self) -> str:
        """Dp rank and stage, as far as known."""
        axes = (("dp", self.dp_rank), ("stage", self.stage))
        return ", ".join(f"{word} {number}" for word, number in axes if number is not None)

    @property
    def name(self) -> str:
        """The rank with its place, host and GPU."""
        names = ("rank", "dp_rank", "stage", "host", "local_rank")
        return formatting.culprit_name({name: getattr(self, name) for name in names})


def rank_waits(result: Result) -> list[RankWaits]:
    """Every rank of the arrivals, most waited for first; empty where there are none."""
    found = result.get("arrivals")
    if not found or not found.get("rank"):
        return []
    step_s = mean_step_s(result)
    culprits = {each["rank"] for each in found["culprits"]} | _named_ranks(result)
    workers = _named_workers(result)
    rows = []
    for row in zip(*(found[name] for name in _RANK_COLUMNS), strict=True):
        each: dict[str, Any] = dict(zip(_RANK_COLUMNS, row, strict=True))
        # Combined windows may not know a rank's waits: these count as 0.
        known: dict[str, Any] = {name: each[name] or 0.0 for name in _ZERO_IF_UNKNOWN}
        share = known["waited_for_s"] / step_s
        is_culprit = each["rank"] in culprits or (each["dp_rank"], each["stage"]) in workers
        rows.append(RankWaits(**{**each, **known}, share=share, is_culprit=is_culprit))
    return sorted(rows, key=lambda each: (-each.waited_for_s, each.rank))


def _named_ranks(result: Result) -> set[int]:
    """GPUs that findings name; None is not among them."""
    return {each["rank"] for each in _culprits(result) if each.get("rank") is not None}


def _named_workers(result: Result) -> set[tuple[int, int]]:
    """Workers that findings name as a whole, by dp rank and stage."""
    return {
        (each["dp_rank"], each["stage"])
        for each in _culprits(result)
        if {"dp_rank", "stage"} <= each.keys() and each.get("local_rank") is None
    }


def _culprits(result: Result) -> list[Mapping[str, Any]]:
    findings = result.get("findings") or ()
    return [culprit for each in findings for culprit in each.get("culprits") or ()]


def mean_step_s(result: Result) -> float:
    """Mean recorded step time, seconds."""
    return mean_s(result, "recorded")


def has_arrivals_finding(result: Result) -> bool:
    """Whether a finding is based on arrivals."""
    return any(
        (each.get("evidence") or {}).get("arrivals") for each in result.get("findings") or ()
    )


def has_material_waits(result: Result) -> bool:
    """Whether waits are worth a chart: a finding uses them, or one rank is waited for a lot."""
    if not result.get("arrivals"):
        return False
    return has_arrivals_finding(result) or largest_wait_share(result) > MATERIAL_SHARE


def largest_wait_share(result: Result) -> float:
    """Share of the step that the others waited for the one rank waited for most."""
    found = result.get("arrivals")
    if not found:
        return 0.0
    return float(found["largest_share"])


def has_coverage(result: Result) -> bool:
    """Whether operations cover enough of the step for a verdict; true where that is not known."""
    coverage = result.get("coverage")
    return coverage is None or coverage >= MIN_COVERAGE


def remarks(result: Result) -> list[str]:
    """Sentences beside the findings: low coverage, a late rank, unexplained waiting or loss.

    Where there is one, "nothing stands out" would be wrong.
    """
    said = [] if has_coverage(result) else [_low_coverage(result["coverage"])]
    return [*said, *_late_rank(result), *(_unexplained(result) or _unexplained_loss(result))]


def cost_text(finding: Mapping[str, Any]) -> str | None:
    """What a finding costs of the GPU time: one share, or the range where two figures disagree."""
    between = finding.get("cost_range")
    if between:
        return f"{formatting.percent(between[0])} to {formatting.percent(between[1])}"
    return None if finding["cost"] is None else formatting.percent(finding["cost"])


def _low_coverage(coverage: float) -> str:
    return (
        f"Recorded operations cover only {formatting.percent(coverage)} of the step: "
        "too little for a verdict."
    )


def _unexplained(result: Result) -> list[str]:
    share = result.get("unexplained_share")
    if share is None or share <= MATERIAL_SHARE:
        return []
    return [f"{formatting.percent(share)} of the step is waiting that no cause explains."]


def _unexplained_loss(result: Result) -> list[str]:
    """The loss that is left after the repairs of all findings, if material."""
    sentence = (result.get("unexplained") or {}).get("sentence")
    return [f"{sentence}."] if sentence else []


def _late_rank(result: Result) -> list[str]:
    """The rank waited for most, where no finding names it and waiting is left unexplained.

    A culprit holds up the other stages of its replica, which then come late as well.
    """
    if largest_wait_share(result) <= MATERIAL_SHARE:
        return []
    if result.get("findings") and not _unexplained(result):
        return []
    first = next(iter(rank_waits(result)), None)
    if first is None or any(_is_named_by(culprit, first) for culprit in _culprits(result)):
        return []
    return [
        f"The other ranks waited for {first.name} for "
        f"{formatting.percent(first.share)} of the step."
    ]


def _is_named_by(culprit: Mapping[str, Any], rank: RankWaits) -> bool:
    """Whether a finding's culprit is or contains that rank."""
    if culprit.get("rank") == rank.rank:
        return True
    if culprit.get("local_rank") is not None:
        return False
    places = [(culprit.get("dp_rank"), rank.dp_rank), (culprit.get("stage"), rank.stage)]
    known = [(named, own) for named, own in places if named is not None]
    if known:
        return all(named == own for named, own in known)
    return rank.host is not None and culprit.get("host") == rank.host


Floats = NDArray[np.float64]

MAX_WAIT_ROWS = 64
# As many rows are shown whatever was waited for them, and more only from this share of the step on.
_MIN_ROWS = 14
_MIN_SHARE = 0.01

_ROW_PX = 18
_MANY_ROWS_PX = 12
# The slowdown scale goes to 1.5: here to a wait of half a step.
_FULL_SHARE = SCALE_MAX - SCALE_MIN


def waited_for(
    result: Mapping[str, Any],
    *,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> PlotlyFigure:
    """Heatmap of milliseconds by rank and step, the ranks most waited for first, culprits outlined.

    `result` has arrivals with their figures by step, for each of its `steps`. Colours go from 0 to
    half a mean step in every job, so that a colour is the same share of the step everywhere.
    """
    steps, by_rank = result["steps"], _by_rank(result)
    at = at or StepAxis.over(list(steps))
    rows = shown_ranks(rank_waits(result))
    values_ms = 1e3 * np.array([by_rank[each.rank] for each in rows]).reshape(len(rows), len(steps))
    step_ms = 1e3 * mean_step_s(result)
    row_px = _ROW_PX if len(rows) <= 24 else _MANY_ROWS_PX
    return PlotlyFigure(
        data=[
            heatmap(
                values_on_axis(steps, values_ms, at),
                theme,
                zmin=0.0,
                zmax=_FULL_SHARE * step_ms,
                **step_cells(
                    len(rows),
                    at,
                    "%{y}, step %{customdata:,}<br>"
                    "others waited <b>%{z:.3~g} ms</b><extra></extra>",
                ),
            )
        ],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + 52 + at.clock_px,
            left_px=LEFT_PX,
            margin={"t": 8, "b": 44 + at.clock_px},
            xaxis=at.x_axis(theme, title=title(at.title, theme)),
            yaxis=axis(
                theme,
                range=[len(rows) - 0.5, -0.5],
                tickvals=list(range(len(rows))),
                ticktext=[_label(each, theme) for each in rows],
            ),
            shapes=[*at.bands(theme), *event_lines(events, at, theme), *_outlines(rows, at, theme)],
        ),
        meta=_meta(result, rows, values_ms, at),
    )


def shown_ranks(every: Sequence[RankWaits]) -> list[RankWaits]:
    """The ranks that have a row, most waited for first: all of few, and of many those that matter.

    Ranks to blame come before all others.
    """
    order = sorted(every, key=lambda each: not each.is_culprit)
    matter = sum(each.is_culprit or each.share >= _MIN_SHARE for each in order)
    return order[: min(MAX_WAIT_ROWS, max(_MIN_ROWS, matter))]


def _by_rank(result: Mapping[str, Any]) -> dict[int, Floats]:
    """[steps] seconds of each rank, NaN where not known."""
    found = result["arrivals"]
    by_step = np.array(found["per_step"]["waited_for_s"], np.float64)
    by_step = by_step.reshape(len(result["steps"]), len(found["rank"]))
    return {rank: by_step[:, column] for column, rank in enumerate(found["rank"])}


def _outlines(rows: Sequence[RankWaits], at: StepAxis, theme: Theme) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "x0": -0.5,
            "x1": at.end,
            "y0": row - 0.5,
            "y1": row + 0.5,
            "line": {"color": theme.ink, "width": 2},
        }
        for row, each in enumerate(rows)
        if each.is_culprit
    ]


def _label(each: RankWaits, theme: Theme) -> str:
    who = f"rank {each.rank}"
    gpu = "" if each.local_rank is None else f" · GPU {each.local_rank}"
    return row_label(who, each.host, theme, otherwise=each.place, end=gpu)


def _meta(
    result: Mapping[str, Any], rows: Sequence[RankWaits], values_ms: Floats, at: StepAxis
) -> Any:
    num_ranks = result["arrivals"]["num_ranks"]
    note = ""
    if num_ranks > len(rows):
        of_ranks = f"of {formatting.count(num_ranks)}"
        note = f"The {formatting.count(len(rows))} ranks most waited for, {of_ranks}."
    figure_meta = meta(
        _sentence(rows),
        ["rank", "place", "host", "mean", "of the step", "late in"]
        + [f"step {formatting.count(step)}" for step in result["steps"]],
        [_row(each, values) for each, values in zip(rows, values_ms, strict=True)],
        note,
    )
    figure_meta["places"] = ItemsByAxis(x=at.along)
    add_clock(figure_meta, at)
    if all(each.dp_rank is not None and each.stage is not None for each in rows):
        workers = [[each.dp_rank or 0, each.stage or 0] for each in rows]
        figure_meta["places"]["y"] = AxisItems(what="worker", items=workers)
    if note:
        figure_meta["table"]["caption"] = note
    return figure_meta


def _row(each: RankWaits, values_ms: Floats) -> list[Cell]:
    gpu = "" if each.local_rank is None else f", GPU {each.local_rank}"
    known = [
        formatting.seconds(value / 1e3) if np.isfinite(value) else formatting.NOT_MEASURED
        for value in values_ms.tolist()
    ]
    return [
        each.rank,
        each.place,
        None if each.host is None else f"{each.host}{gpu}",
        formatting.seconds(each.waited_for_s),
        formatting.percent(each.share),
        formatting.percent(each.late_share),
        *known,
    ]


def _sentence(rows: Sequence[RankWaits]) -> str:
    if not rows or rows[0].waited_for_s <= 0:
        return "No rank was waited for in these steps."
    first = rows[0]
    blamed = sum(each.is_culprit for each in rows)
    more = f", and for {formatting.plural(blamed - 1, 'more rank')} that is" if blamed == 2 else ""
    more = f", and for {formatting.count(blamed - 1)} more ranks that are" if blamed > 2 else more
    also = f"{more} to blame" if more else ""
    return (
        f"The others waited for {first.name} for {formatting.seconds(first.waited_for_s)} a step, "
        f"{formatting.percent(first.share)} of it{also}."
    )
