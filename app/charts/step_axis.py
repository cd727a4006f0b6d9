"""The step axis that the step-time chart and the worker-by-step chart share, broken at gaps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Any

from app import words
from app.charts.figure import Along, axis
from app.charts.theme import Theme

# A gap takes the room of one step, but is never a sliver on a long axis.
_MIN_GAP_SHARE = 0.025

# More labels than this would touch each other on a narrow screen.
_MAX_GAP_LABELS = 4
_MAX_TICKS = 8

# Of many gaps only those of at least this share of the axis's steps are drawn.
_LARGE_GAP_SHARE = 0.1

# In runs shorter than this, round step numbers are too rare to label the axis.
_LONG_RUN = 20


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps without figures between two recorded ones, and where they are on the axis."""

    x0: float
    x1: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class StepAxis:
    """Where each drawn step is; `position` is ascending and 1 apart within a run.

    A run has no large gap; steps that are left out here and there take no room.

    `spans` are the first and the last of the recorded steps that a drawn one stands for: itself,
    unless there are more than can be drawn.
    """

    steps: tuple[int, ...]
    position: tuple[float, ...]
    gaps: tuple[Gap, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def over(
        cls, steps: Sequence[int], spans: Sequence[tuple[int, int]] | None = None
    ) -> "StepAxis":
        """The axis over ascending recorded steps, each for itself or for all of its span."""
        spans = [(step, step) for step in steps] if spans is None else spans
        gap_width = max(1.0, _MIN_GAP_SHARE * len(steps))
        position: list[float] = [0.0] if steps else []
        gaps: list[Gap] = []
        skipped = _skipped(spans)
        large = _large(skipped, spans)
        for index, num_steps in enumerate(skipped):
            at = position[-1]
            if index in large:
                gaps.append(Gap(at + 0.5, at + 0.5 + gap_width, num_steps))
                at += gap_width
            position.append(at + 1)
        return cls(tuple(steps), tuple(position), tuple(gaps), tuple(spans))

    @property
    def runs(self) -> list[range]:
        """Indices into `steps` of each stretch without a large gap."""
        apart = [after - before for before, after in pairwise(self.position)]
        cuts = [at for at, room in enumerate(apart, 1) if room > 1]
        edges = [0, *cuts, len(self.steps)]
        return [range(first, end) for first, end in pairwise(edges) if end > first]

    @property
    def most_of_one(self) -> int:
        """The most recorded steps that one drawn step stands for."""
        return max((last - first + 1 for first, last in self.spans), default=1)

    @property
    def columns(self) -> list[int | None]:
        """What each column of a heatmap shows: an index into `steps`, or None for a gap."""
        found: list[int | None] = []
        for run in self.runs:
            found += [*run, None]
        return found[:-1]

    @property
    def edges(self) -> list[float]:
        """Where these columns begin, and at last where the last one ends."""
        starts = [at - 0.5 for at in self.position] + [gap.x0 for gap in self.gaps]
        return [*sorted(starts), self.end]

    @property
    def title(self) -> str:
        """What the axis says of itself."""
        if self.most_of_one > 1:
            return f"step, the slowest of up to {words.whole(self.most_of_one)} each"
        return "step, recorded ones only" if self._is_sparse else "step"

    @property
    def along(self) -> Along:
        """What a page needs to find the step under the pointer."""
        items: list[int | list[int]] = [
            first if first == last else [first, last] for first, last in self.spans
        ]
        return Along(what="step", items=items, at=list(self.position))

    @property
    def end(self) -> float:
        """Right edge of the last step's cell."""
        return self.position[-1] + 0.5 if self.position else 0.5

    def of(self, step: int) -> float | None:
        """Where a step is drawn, or what stands for it; None when it is not on the axis."""
        at = bisect_right(self.spans, step, key=lambda span: span[0]) - 1
        is_on_it = at >= 0 and step <= self.spans[at][1]
        return self.position[at] if is_on_it else None

    def x_axis(self, theme: Theme, **parts: Any) -> dict[str, Any]:
        """Plotly's axis with step numbers as labels."""
        ticks = self._ticks()
        return axis(
            theme,
            range=[-0.5, self.end],
            tickvals=[self.position[at] for at in ticks],
            ticktext=[words.whole(self.steps[at]) for at in ticks],
            **parts,
        )

    def bands(self, theme: Theme) -> list[dict[str, Any]]:
        """The gaps as well-coloured shapes over the whole height."""
        return [band(gap.x0, gap.x1, theme) for gap in self.gaps]

    def labels(self, theme: Theme) -> list[dict[str, Any]]:
        """How many steps each gap leaves out, above the plot; none when they would touch."""
        if len(self.gaps) > _MAX_GAP_LABELS:
            return []
        return [
            above((gap.x0 + gap.x1) / 2, f"{words.whole(gap.num_steps)} skipped", theme)
            for gap in self.gaps
        ]

    @property
    def _is_sparse(self) -> bool:
        return any(_skipped(self.spans))

    def _ticks(self) -> list[int]:
        every = _nice(len(self.steps) / _MAX_TICKS)
        round_ones = [at for at, step in enumerate(self.steps) if step % every == 0]
        is_broken_up = bool(self.gaps) and len(self.steps) < _LONG_RUN * len(self.runs)
        if not is_broken_up and self._is_sparse and len(round_ones) < 2:
            round_ones = list(range(0, len(self.steps), every))
        return self._spread(self._edges() if is_broken_up else round_ones)

    def _edges(self) -> list[int]:
        return sorted({at for run in self.runs for at in (run[0], run[-1])})

    def _spread(self, wanted: list[int]) -> list[int]:
        room = self.end / (_MAX_TICKS + 2)
        kept: list[int] = []
        for at in wanted:
            if not kept or self.position[at] - self.position[kept[-1]] >= room:
                kept.append(at)
        return kept


def _skipped(spans: Sequence[tuple[int, int]]) -> list[int]:
    """How many steps are left out after each span but the last."""
    return [after - before - 1 for (_, before), (after, _) in pairwise(spans)]


def _large(skipped: Sequence[int], spans: Sequence[tuple[int, int]]) -> set[int]:
    """After which spans so much is left out that the axis shows it.

    Where steps are usually recorded some apart, that is no gap. Such gaps, and many, would be a
    pattern of their own: then only those that are a good part of all steps are left.
    """
    usual = median_low(skipped) if len(skipped) > 2 else 0
    found = {index for index, number in enumerate(skipped) if number > 2 * usual}
    if not usual and len(found) <= _MAX_GAP_LABELS:
        return found
    least = _LARGE_GAP_SHARE * (spans[-1][1] - spans[0][0] + 1)
    return {index for index in found if skipped[index] >= least}


def band(x0: float, x1: float, theme: Theme) -> dict[str, Any]:
    """A well-coloured stretch of the axis without figures."""
    return {
        "type": "rect",
        "x0": x0,
        "x1": x1,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": theme.well,
        "line": {"width": 0},
        "layer": "below",
    }


def above(x: float, text: str, theme: Theme) -> dict[str, Any]:
    """A label just above the plot."""
    return {
        "x": x,
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": theme.ink2},
    }


def _nice(spacing: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is at least the spacing."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= spacing:
                return digit * power
        power *= 10
