"""The step axis that the step-time chart and the worker-by-step chart share, broken at gaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app.charts import words
from app.charts.figure import axis
from app.charts.theme import Theme

# A gap takes the room of one step, but is never a sliver on a long axis.
_MIN_GAP_SHARE = 0.025

# More labels than this would touch each other on a narrow screen.
_MAX_GAP_LABELS = 4
_MAX_TICKS = 8

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
    """Where each recorded step is drawn; `position` is ascending and 1 apart within a run."""

    steps: tuple[int, ...]
    position: tuple[float, ...]
    gaps: tuple[Gap, ...]

    @classmethod
    def over(cls, steps: Sequence[int]) -> "StepAxis":
        """The axis over ascending recorded steps."""
        gap_width = max(1.0, _MIN_GAP_SHARE * len(steps))
        position: list[float] = [0.0] if steps else []
        gaps: list[Gap] = []
        for before, after in pairwise(steps):
            at = position[-1]
            if after - before > 1:
                gaps.append(Gap(at + 0.5, at + 0.5 + gap_width, after - before - 1))
                at += gap_width
            position.append(at + 1)
        return cls(tuple(steps), tuple(position), tuple(gaps))

    @property
    def runs(self) -> list[range]:
        """Indices into `steps` of each stretch without a gap."""
        cuts = [at for at in range(1, len(self.steps)) if self.steps[at] - self.steps[at - 1] > 1]
        edges = [0, *cuts, len(self.steps)]
        return [range(first, end) for first, end in pairwise(edges) if end > first]

    @property
    def end(self) -> float:
        """Right edge of the last step's cell."""
        return self.position[-1] + 0.5 if self.position else 0.5

    def of(self, step: int) -> float | None:
        """Where a step is drawn, or None when it is not on the axis."""
        return dict(zip(self.steps, self.position, strict=True)).get(step)

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

    def _ticks(self) -> list[int]:
        every = _nice(len(self.steps) / _MAX_TICKS)
        round_ones = [at for at, step in enumerate(self.steps) if step % every == 0]
        is_broken_up = bool(self.gaps) and len(self.steps) < _LONG_RUN * len(self.runs)
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
