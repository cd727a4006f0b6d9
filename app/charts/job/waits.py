"""Waits of ranks for each other: figures of each rank, sentences, and a heatmap by step.

`remarks` covers what no finding does: low coverage, unexplained waiting, a late rank, facts.
The heatmap has milliseconds by rank and step. docs/arrivals.md defines the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app import formatting
from app.charts.base.figure import (
    AxisItems,
    Cell,
    FigureMeta,
    ItemsByAxis,
    PlotlyFigure,
    layout,
    meta,
    row_axis,
)
from app.charts.base.heatmap import Floats, heatmap_by_step, row_label
from app.charts.base.plotly import PlotlyLine, PlotlyTrace, box
from app.charts.base.step_axis import StepAxis, StepEvent, event_lines
from app.charts.base.theme import SCALE_MAX, SCALE_MIN, Theme
from app.charts.job.step_times import LEFT_PX
from app.result.finding import Culprit, Finding
from app.result.window_result import WindowResult, total_s
from app.result.words import MIN_FACT_SHARE, observed

# Above this share of the step, waiting is said and shown even where no cause is found.
MATERIAL_SHARE = 0.05
# Where operations cover less of the step, nothing can be ruled out.
MIN_COVERAGE = 0.6


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank that recorded collectives; times in seconds a step, `share` is of the step.

    `is_culprit` says whether arrivals alone, or some finding, blames it; `is_inherited`, that most
    of the wait for it is none of its own delay: it was held up itself, or is no suspect.
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
    is_inherited: bool

    @property
    def own_share(self) -> float:
        """Share of the wait for it that is its own delay; all of it where that is not known."""
        if self.own_delay_s is None or self.waited_for_s <= 0:
            return 1.0
        return min(1.0, max(0.0, self.own_delay_s) / self.waited_for_s)

    @property
    def own_s(self) -> float:
        """Seconds a step that the others waited for its own delay; 0 of an inherited one."""
        return 0.0 if self.is_inherited else self.own_share * self.waited_for_s

    @property
    def place(self) -> str:
        """Dp rank and stage, as far as known."""
        axes = (("dp", self.dp_rank), ("stage", self.stage))
        return ", ".join(f"{word} {number}" for word, number in axes if number is not None)

    @property
    def name(self) -> str:
        """The rank with its place, host and GPU."""
        return formatting.culprit_name(
            rank=self.rank,
            dp_rank=self.dp_rank,
            stage=self.stage,
            host=self.host,
            local_rank=self.local_rank,
        )


# A wait of which less is the rank's own delay is inherited.
_MIN_OWN_SHARE = 0.5


def rank_waits(result: WindowResult) -> list[RankWaits]:
    """Every rank of the arrivals; empty where there are none.

    Those with the longest delay of their own come first, then those that only were held up. The
    page names the late rank by the same order (waits.js).
    """
    arrivals = result.arrivals
    if arrivals is None or not arrivals.rank:
        return []
    step_s = mean_step_s(result)
    named = _culprits(result)
    ranks = {late.rank for late in arrivals.culprits} | {culprit.rank for culprit in named}
    # Those that findings name as a whole.
    workers = {
        (culprit.dp_rank, culprit.stage)
        for culprit in named
        if None not in (culprit.dp_rank, culprit.stage) and culprit.local_rank is None
    }
    # Where no rank's own delay is known, no delay counts as inherited.
    knows_own = any(own_s is not None for own_s in arrivals.own_delay_s)
    rows = [
        RankWaits(
            rank,
            arrivals.dp_rank[at],
            arrivals.stage[at],
            arrivals.host[at],
            arrivals.local_rank[at],
            # Combined windows may not know a rank's waits: these count as 0.
            waited_for_s=arrivals.waited_for_s[at] or 0.0,
            waited_s=arrivals.waited_s[at] or 0.0,
            share=(arrivals.waited_for_s[at] or 0.0) / step_s,
            late_share=arrivals.late_share[at] or 0.0,
            own_delay_s=arrivals.own_delay_s[at],
            is_culprit=rank in ranks or (arrivals.dp_rank[at], arrivals.stage[at]) in workers,
            is_inherited=False,
        )
        for at, rank in enumerate(arrivals.rank)
    ]
    rows = [replace(waits, is_inherited=knows_own and _is_inherited(waits)) for waits in rows]
    return sorted(rows, key=lambda waits: (-waits.own_s, -waits.waited_for_s, waits.rank))


def _is_inherited(waits: RankWaits) -> bool:
    if waits.is_culprit or waits.waited_for_s <= 0:
        return False
    return waits.own_delay_s is None or waits.own_share < _MIN_OWN_SHARE


def _culprits(result: WindowResult) -> list[Culprit]:
    return [culprit for finding in result.findings or () for culprit in finding.culprits]


def mean_step_s(result: WindowResult) -> float:
    """Mean recorded step time of the window, seconds; `steps` may be those of a longer axis."""
    counts = None if result.thinned is None else result.thinned.step_counts
    number = len(result.step_time_s.recorded) if counts is None else sum(counts)
    return total_s(result, "recorded") / number


def has_material_waits(result: WindowResult) -> bool:
    """Whether waits are worth a chart: a finding uses them, or one rank is waited for a lot."""
    if result.arrivals is None:
        return False
    is_used = any(finding.evidence.get("arrivals") for finding in result.findings or ())
    return is_used or largest_wait_share(result) > MATERIAL_SHARE


def largest_wait_share(result: WindowResult) -> float:
    """Share of the step that the others waited for the one rank waited for most."""
    return 0.0 if result.arrivals is None else result.arrivals.largest_share or 0.0


def remarks(result: WindowResult) -> list[str]:
    """Sentences beside the findings: low coverage, a late rank, unexplained waiting or loss, facts.

    Where there is one, "nothing stands out" would be wrong.
    """
    unexplained = _unexplained(result) or _unexplained_loss(result)
    facts = observed(result, MIN_FACT_SHARE)
    return [*_low_coverage(result), *_late_rank(result), *unexplained, *facts]


def cost_text(finding: Finding) -> str | None:
    """What a finding costs of the GPU time: one share, or the range where two figures disagree."""
    if finding.cost_range:
        return " to ".join(map(formatting.percent, finding.cost_range))
    return None if finding.cost is None else formatting.percent(finding.cost)


def _low_coverage(result: WindowResult) -> list[str]:
    """That operations cover too little of the step, where they do."""
    if result.coverage is None or result.coverage >= MIN_COVERAGE:
        return []
    return [
        f"Recorded operations cover only {formatting.percent(result.coverage)} of the step: "
        "too little for a verdict."
    ]


def _unexplained(result: WindowResult) -> list[str]:
    share = result.unexplained_share
    if share is None or share <= MATERIAL_SHARE:
        return []
    return [f"{formatting.percent(share)} of the step is waiting that no cause explains."]


def _unexplained_loss(result: WindowResult) -> list[str]:
    """The loss that is left after the repairs of all findings, if material."""
    sentence = None if result.unexplained is None else result.unexplained.sentence
    return [f"{sentence}."] if sentence else []


def _late_rank(result: WindowResult) -> list[str]:
    """The rank waited for most, where no finding names it and waiting is left unexplained.

    A culprit holds up the other stages of its replica, which then come late as well.
    """
    if largest_wait_share(result) <= MATERIAL_SHARE:
        return []
    if result.findings and not _unexplained(result):
        return []
    first = next(iter(rank_waits(result)), None)
    if first is None or any(_is_named_by(culprit, first) for culprit in _culprits(result)):
        return []
    return [
        f"The other ranks waited for {first.name} for "
        f"{formatting.percent(first.share)} of the step."
    ]


def _is_named_by(culprit: Culprit, rank: RankWaits) -> bool:
    """Whether a finding's culprit is or contains that rank."""
    if culprit.rank == rank.rank:
        return True
    if culprit.local_rank is not None:
        return False
    places = [(culprit.dp_rank, rank.dp_rank), (culprit.stage, rank.stage)]
    known = [(named, own) for named, own in places if named is not None]
    if known:
        return all(named == own for named, own in known)
    return rank.host is not None and culprit.host == rank.host


MAX_WAIT_ROWS = 64
# As many rows are shown whatever was waited for them, and more only from this share of the step on.
_MIN_ROWS = 14
_MIN_SHARE = 0.01

_ROW_PX = 18
_MANY_ROWS_PX = 12
# The slowdown scale goes to 1.5: here to a wait of half a step.
_FULL_SHARE = SCALE_MAX - SCALE_MIN


def waited_for(
    result: WindowResult,
    *,
    theme: Theme,
    at: StepAxis | None = None,
    events: Sequence[StepEvent] = (),
) -> PlotlyFigure:
    """Heatmap of milliseconds by rank and step, the longest own delay first, culprits outlined.

    `result` has arrivals with their figures by step, for each of its `steps`. Colours are of the
    part that is the rank's own delay, on average, and go from 0 to half a mean step in every job,
    so that a colour is the same share of the step everywhere. Waits that a rank inherited are
    hatched.
    """
    steps, by_rank = result.steps, _by_rank(result)
    at = at or StepAxis.over(list(steps))
    rows = shown_ranks(rank_waits(result))
    values_ms = 1e3 * np.array([by_rank[waits.rank] for waits in rows]).reshape(
        len(rows), len(steps)
    )
    step_ms = 1e3 * mean_step_s(result)
    row_px = _ROW_PX if len(rows) <= 24 else _MANY_ROWS_PX
    blamed: PlotlyLine = {"color": theme.ink, "width": 2}
    outlines = [
        box((-0.5, at.end), (row - 0.5, row + 0.5), blamed)
        for row, waits in enumerate(rows)
        if waits.is_culprit
    ]
    own_ms = values_ms * np.array([waits.own_share for waits in rows]).reshape(-1, 1)
    hover = (
        "%{y}, step %{customdata:,}<br>others waited <b>%{text:.3~g} ms</b><br>"
        "of it for its own delay: %{z:.3~g} ms or less<extra></extra>"
    )
    waited = heatmap_by_step(steps, values_ms, at, theme, hover)["z"]
    return PlotlyFigure(
        data=[
            heatmap_by_step(steps, own_ms, at, theme, hover)
            | {"text": waited, "zmin": 0.0, "zmax": _FULL_SHARE * step_ms},
            *_hatches(rows, at, theme),
        ],
        layout=layout(
            theme,
            height_px=row_px * len(rows) + 52 + at.clock_px,
            left_px=LEFT_PX,
            margin={"t": 8, "b": 44 + at.clock_px},
            xaxis=at.x_axis(theme, has_title=True),
            yaxis=row_axis([_label(waits, theme) for waits in rows], theme),
            shapes=[*at.bands(theme), *event_lines(events, at, theme), *outlines],
        ),
        meta=_meta(result, rows, values_ms, at),
    )


def _hatches(rows: Sequence[RankWaits], at: StepAxis, theme: Theme) -> list[PlotlyTrace]:
    """Hatches over the rows of ranks that inherited their delay."""
    held_up = [row for row, waits in enumerate(rows) if waits.is_inherited]
    if not held_up:
        return []
    return [
        {
            "type": "bar",
            "orientation": "h",
            "base": [-0.5] * len(held_up),
            "x": [at.end + 0.5] * len(held_up),
            "y": held_up,
            "width": 1.0,
            "marker": {
                "color": "rgba(0,0,0,0)",
                "line": {"width": 0},
                "pattern": {
                    "shape": "/",
                    "size": 6,
                    "solidity": 0.3,
                    "fillmode": "replace",
                    "fgcolor": theme.wait,
                    "bgcolor": "rgba(0,0,0,0)",
                },
            },
            "hoverinfo": "skip",
        }
    ]


def shown_ranks(every: Sequence[RankWaits]) -> list[RankWaits]:
    """The ranks that have a row, in their order: all of few, and of many those that matter.

    Ranks to blame come before all others.
    """
    order = sorted(every, key=lambda waits: not waits.is_culprit)
    matter = sum(waits.is_culprit or waits.share >= _MIN_SHARE for waits in order)
    return order[: min(MAX_WAIT_ROWS, max(_MIN_ROWS, matter))]


def _by_rank(result: WindowResult) -> dict[int, Floats]:
    """[steps] seconds of each rank, NaN where not known."""
    arrivals = result.arrivals
    if arrivals is None or arrivals.per_step is None:
        return {}
    by_step = np.array(arrivals.per_step.waited_for_s, np.float64)
    by_step = by_step.reshape(len(result.steps), len(arrivals.rank))
    return {rank: by_step[:, column] for column, rank in enumerate(arrivals.rank)}


def _label(waits: RankWaits, theme: Theme) -> str:
    who = f"rank {waits.rank}"
    gpu = "" if waits.local_rank is None else f" · GPU {waits.local_rank}"
    return row_label(who, waits.host, theme, otherwise=waits.place, end=gpu)


def _meta(
    result: WindowResult, rows: Sequence[RankWaits], values_ms: Floats, at: StepAxis
) -> FigureMeta:
    num_ranks = 0 if result.arrivals is None else result.arrivals.num_ranks or 0
    note = ""
    if num_ranks > len(rows):
        of_ranks = f"of {formatting.count(num_ranks)}"
        shown = formatting.count(len(rows))
        note = f"{shown} {of_ranks} ranks: the longest own delays, then the longest waits."
    if held_up := sum(waits.is_inherited for waits in rows):
        are = "rank is" if held_up == 1 else "ranks are"
        note += f" Hatched: {held_up} {are} late because others held them up, or no suspect."
    places = ItemsByAxis(x=at.along)
    if all(waits.dp_rank is not None and waits.stage is not None for waits in rows):
        workers = [[waits.dp_rank or 0, waits.stage or 0] for waits in rows]
        places["y"] = AxisItems(what="worker", items=workers)
    return meta(
        _sentence(rows),
        ["rank", "place", "host", "mean", "of the step", "own delay", "late in"]
        + [f"step {formatting.count(step)}" for step in result.steps],
        [_row(waits, values) for waits, values in zip(rows, values_ms, strict=True)],
        note=note,
        caption=note,
        places=places,
        clock=at.clock,
    )


def _row(waits: RankWaits, values_ms: Floats) -> list[Cell]:
    gpu = "" if waits.local_rank is None else f", GPU {waits.local_rank}"
    return [
        waits.rank,
        waits.place,
        None if waits.host is None else f"{waits.host}{gpu}",
        formatting.seconds(waits.waited_for_s),
        formatting.percent(waits.share),
        own_delay_text(waits),
        formatting.percent(waits.late_share),
        *(formatting.measured(value / 1e3, formatting.seconds) for value in values_ms.tolist()),
    ]


def own_delay_text(waits: RankWaits) -> str:
    """Mean seconds a step of its own delay."""
    own_s = waits.own_delay_s
    return "unknown" if own_s is None else formatting.seconds(max(0.0, own_s))


def _sentence(rows: Sequence[RankWaits]) -> str:
    if not rows or rows[0].waited_for_s <= 0:
        return "No rank was waited for in these steps."
    first = rows[0]
    more = sum(waits.is_culprit for waits in rows) - 1
    are = "is" if more == 1 else "are"
    ranks = formatting.plural(more, "more rank")
    also = f", and for {ranks} that {are} to blame" if more > 0 else ""
    return (
        f"The others waited for {first.name} for {formatting.seconds(first.waited_for_s)} a step, "
        f"{formatting.percent(first.share)} of it{also}."
    )
