"""The step axis that the charts over steps share, broken at gaps, with the events marked on it.

An event (a restart, an alert) is a dotted line through the charts over steps, and a label over the
first of them. Where there are more steps than can be drawn, each point is the slowest of several.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

from app import formatting
from app.charts.base.figure import AxisClock, AxisItems, axis, numbers, title
from app.charts.base.plotly import (
    PlotlyAnnotation,
    PlotlyAxis,
    PlotlyLine,
    PlotlyMarker,
    PlotlyShape,
    PlotlyTrace,
    box,
    line_between,
    line_style,
    text_at,
)
from app.charts.base.theme import Theme

# A gap takes the room of one step, but is never a sliver on a long axis.
_MIN_GAP_SHARE = 0.025

# More labels than this would touch each other on a narrow screen.
_MAX_GAP_LABELS = 4
_MAX_TICKS = 8

# Times are wider than step numbers.
_MAX_CLOCK_LABELS = 4
_CLOCK_PX = 16
_SECONDS_BELOW_S = 900.0
_DAY_S = 72_000.0

# Of many gaps only those of at least this share of the axis's steps are drawn.
_LARGE_GAP_SHARE = 0.1

# In runs shorter than this, round step numbers are too rare to label the axis.
_LONG_RUN = 20


@dataclass(frozen=True, slots=True)
class StepGap:
    """Steps without figures between two recorded ones, and their position on the axis."""

    x0: float
    x1: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class StepAxis:
    """Where each drawn step is; `position` is ascending and 1 apart within a run.

    A run has no large gap; steps that are left out here and there take no room.

    `spans` are the first and the last of the recorded steps that a drawn one stands for: itself,
    unless there are more than can be drawn, or some are stored as means of several (`has_means`).
    `started_s` are the Unix times at which the drawn steps started, None where not known; empty
    where none is.
    """

    steps: tuple[int, ...]
    position: tuple[float, ...]
    gaps: tuple[StepGap, ...]
    spans: tuple[tuple[int, int], ...]
    started_s: tuple[float | None, ...] = ()
    has_means: bool = False

    @classmethod
    def over(
        cls, steps: Sequence[int], spans: Sequence[tuple[int, int]] | None = None
    ) -> "StepAxis":
        """The axis over ascending recorded steps, each for itself or for all of its span."""
        spans = [(step, step) for step in steps] if spans is None else spans
        gap_width = max(1.0, _MIN_GAP_SHARE * len(steps))
        position: list[float] = [0.0] if steps else []
        gaps: list[StepGap] = []
        skipped = _skipped_after(spans)
        large = _large_gaps(skipped, spans)
        for index, num_steps in enumerate(skipped):
            at = position[-1]
            if index in large:
                gaps.append(StepGap(at + 0.5, at + 0.5 + gap_width, num_steps))
                at += gap_width
            position.append(at + 1)
        return cls(tuple(steps), tuple(position), tuple(gaps), tuple(spans))

    def with_clock(self, started_s: Mapping[int, float | None]) -> "StepAxis":
        """The axis with a second line of labels: the time of day at which a step started."""
        times = tuple(started_s.get(step) for step in self.steps)
        return replace(self, started_s=times if any(at is not None for at in times) else ())

    @property
    def runs(self) -> list[range]:
        """Indices into `steps` of each stretch without a large gap."""
        apart = [after - before for before, after in pairwise(self.position)]
        cuts = [at for at, room in enumerate(apart, 1) if room > 1]
        edges = [0, *cuts, len(self.steps)]
        return [range(first, end) for first, end in pairwise(edges) if end > first]

    @property
    def max_steps_per_point(self) -> int:
        """The most recorded steps that one drawn step stands for."""
        return max((last - first + 1 for first, last in self.spans), default=1)

    @property
    def columns(self) -> list[int | None]:
        """What each column of a heatmap shows: an index into `steps`, or None for a gap."""
        columns: list[int | None] = []
        for run in self.runs:
            columns += [*run, None]
        return columns[:-1]

    @property
    def edges(self) -> list[float]:
        """Left edges of the columns, and the right edge of the last."""
        starts = [at - 0.5 for at in self.position] + [gap.x0 for gap in self.gaps]
        return [*sorted(starts), self.end]

    @property
    def title(self) -> str:
        """Title of the axis."""
        text = "step, recorded ones only" if self._is_sparse else "step"
        if self.has_means or self.max_steps_per_point > 1:
            drawn = "means" if self.has_means else "the slowest"
            text = f"step, {drawn} of up to {formatting.count(self.max_steps_per_point)} each"
        return f"{text} · time, UTC" if self.started_s else text

    @property
    def along(self) -> AxisItems:
        """Steps along the axis, for finding the step under the pointer."""
        items: list[int | list[int]] = [
            first if first == last else [first, last] for first, last in self.spans
        ]
        return AxisItems(what="step", items=items, at=list(self.position))

    @property
    def end(self) -> float:
        """Right edge of the last step's cell."""
        return self.position[-1] + 0.5 if self.position else 0.5

    def position_of(self, step: int) -> float | None:
        """Position of a step, or of the point that covers it; None if off the axis."""
        at = bisect_right(self.spans, step, key=lambda span: span[0]) - 1
        is_on_it = at >= 0 and step <= self.spans[at][1]
        return self.position[at] if is_on_it else None

    def x_axis(self, theme: Theme, *, has_title: bool = False) -> PlotlyAxis:
        """Plotly's axis with step numbers as labels, and below some of them the time of day."""
        ticks = self._timed_ticks()
        x_axis = axis(
            theme,
            range=[-0.5, self.end],
            tickvals=[self.position[at] for at in ticks],
            ticktext=[self._tick_label(at, at_s) for at, at_s in ticks.items()],
        )
        return x_axis | {"title": title(self.title, theme)} if has_title else x_axis

    def _tick_label(self, at: int, at_s: float | None) -> str:
        step = formatting.count(self.steps[at])
        if at_s is None:
            return step
        return f"{step}<br>{formatting.clock_label(at_s, self.clock_detail)}"

    @property
    def clock_px(self) -> int:
        """Height of the second line of labels, pixels."""
        return _CLOCK_PX if self.started_s else 0

    @property
    def clock_detail(self) -> formatting.ClockDetail:
        """How exact the times have to be to tell the labels apart."""
        known = [at_s for at_s in self.started_s if at_s is not None]
        span_s = max(known) - min(known) if known else 0.0
        return "seconds" if span_s < _SECONDS_BELOW_S else "minutes" if span_s < _DAY_S else "days"

    @property
    def clock(self) -> AxisClock | None:
        """Times of the drawn steps, for readers in other time zones; None where none is known."""
        if not self.started_s:
            return None
        return AxisClock(
            steps=list(self.steps),
            started_s=list(self.started_s),
            columns=self.columns,
            ticks=list(self._timed_ticks().values()),
            detail=self.clock_detail,
        )

    def _timed_ticks(self) -> dict[int, float | None]:
        """The ticks, with the known times of those that have room for one."""
        ticks = self._ticks()
        known = [at for at in ticks if self.started_s and self.started_s[at] is not None]
        timed = self._spread(known, (self.end + 0.5) / _MAX_CLOCK_LABELS)
        return {at: self.started_s[at] if at in timed else None for at in ticks}

    def bands(self, theme: Theme) -> list[PlotlyShape]:
        """The gaps as shapes in the colour of wells, over the whole height."""
        return [band(gap.x0, gap.x1, theme) for gap in self.gaps]

    def labels(self, theme: Theme) -> list[PlotlyAnnotation]:
        """How many steps each gap leaves out, above the plot; none when they would touch."""
        if len(self.gaps) > _MAX_GAP_LABELS:
            return []
        return [
            label_above((gap.x0 + gap.x1) / 2, f"{formatting.count(gap.num_steps)} skipped", theme)
            for gap in self.gaps
        ]

    @property
    def _is_sparse(self) -> bool:
        return any(_skipped_after(self.spans))

    def _ticks(self) -> list[int]:
        every = _round_spacing(len(self.steps) / _MAX_TICKS)
        round_ones = [at for at, step in enumerate(self.steps) if step % every == 0]
        is_broken_up = bool(self.gaps) and len(self.steps) < _LONG_RUN * len(self.runs)
        if not is_broken_up and self._is_sparse and len(round_ones) < 2:
            round_ones = list(range(0, len(self.steps), every))
        edges = sorted({at for run in self.runs for at in (run[0], run[-1])})
        return self._spread(edges if is_broken_up else round_ones, self.end / (_MAX_TICKS + 2))

    def _spread(self, wanted: list[int], room: float) -> list[int]:
        """Those of the steps that are at least `room` apart, the first one among them."""
        kept: list[int] = []
        for at in wanted:
            if not kept or self.position[at] - self.position[kept[-1]] >= room:
                kept.append(at)
        return kept


def _skipped_after(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Number of steps missing after each span but the last."""
    return [after - before - 1 for (_, before), (after, _) in pairwise(spans)]


def _large_gaps(skipped: Sequence[int], spans: Sequence[tuple[int, int]]) -> set[int]:
    """Indices of the spans after which the axis shows a gap.

    Where steps are usually recorded some apart, that is no gap. Such gaps, and many, would be a
    pattern of their own: then only those that are a good part of all steps are left.
    """
    usual = median_low(skipped) if len(skipped) > 2 else 0
    gaps = {index for index, number in enumerate(skipped) if number > 2 * usual}
    if not usual and len(gaps) <= _MAX_GAP_LABELS:
        return gaps
    least = _LARGE_GAP_SHARE * (spans[-1][1] - spans[0][0] + 1)
    return {index for index in gaps if skipped[index] >= least}


def band(x0: float, x1: float, theme: Theme) -> PlotlyShape:
    """A stretch of the axis without figures, in the colour of wells."""
    over_all_rows = box((x0, x1), (0, 1), {"width": 0})
    return over_all_rows | {"yref": "paper", "fillcolor": theme.well, "layer": "below"}


def label_above(x: float, text: str, theme: Theme) -> PlotlyAnnotation:
    """A label just above the plot."""
    return text_at({"x": x, "yref": "paper", "y": 1, "yanchor": "bottom"}, text, theme.ink2)


def _round_spacing(spacing: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, ... that is at least the spacing."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power >= spacing:
                return digit * power
        power *= 10


# Labels nearer to each other than this share of the width would touch.
_MIN_LABEL_DISTANCE = 0.1


@dataclass(frozen=True, slots=True)
class StepEvent:
    """An event at a step, in a word or two."""

    step: int
    text: str


def event_lines(events: Sequence[StepEvent], at: StepAxis, theme: Theme) -> list[PlotlyShape]:
    """A dotted line before each event's step."""
    dotted = line_style(theme.ink2, 1, "dot")
    return [
        line_between((x, x), (0, 1), dotted) | {"yref": "paper"}
        for x in sorted({x for x, _ in _event_positions(events, at)})
    ]


def event_labels(events: Sequence[StepEvent], at: StepAxis, theme: Theme) -> list[PlotlyAnnotation]:
    """Labels of gaps and events above the plot; those that would touch another are left out.

    Gaps first: nothing else says how much is missing there.
    """
    kept = at.labels(theme)
    room = _MIN_LABEL_DISTANCE * (at.end + 0.5)
    for x, text in _event_positions(events, at):
        if all(abs(x - label["x"]) >= room for label in kept):
            kept.append(label_above(x, text, theme))
    return kept


def _event_positions(events: Sequence[StepEvent], at: StepAxis) -> list[tuple[float, str]]:
    positions = [(at.position_of(event.step), event.text) for event in events]
    return [(x - 0.5, text) for x, text in positions if x is not None]


# Points of a line 650 px wide.
MAX_DRAWN_STEPS = 600
# Further than that, each point means another window to be read for the charts by worker.
MAX_READ_STEPS = 240
_FEW_STEPS = 8 * MAX_READ_STEPS

TimedStep = tuple[int, float]  # step, seconds


def thinned_axis(
    steps: Sequence[TimedStep], last_steps: Mapping[int, int] | None = None
) -> StepAxis:
    """The axis over ascending steps and their times; none is drawn for steps across a gap.

    `last_steps` has, of those that are stored as means, the last step that each stands for.
    """
    ends = last_steps or {}
    groups = _groups_of_steps(steps, ends)
    axis_of_groups = StepAxis.over(
        [max(group, key=lambda timed: timed[1])[0] for group in groups],
        [(group[0][0], ends.get(group[-1][0], group[-1][0])) for group in groups],
    )
    return replace(axis_of_groups, has_means=bool(ends))


def _groups_of_steps(
    steps: Sequence[TimedStep], ends: Mapping[int, int]
) -> list[Sequence[TimedStep]]:
    """The steps of each point."""
    most = MAX_DRAWN_STEPS if len(steps) <= _FEW_STEPS else MAX_READ_STEPS
    if len(steps) <= most:
        return [[timed] for timed in steps]
    runs = _runs_of_steps(steps, ends)
    if len(runs) > most // 2:
        runs = [list(steps)]  # broken up so much that gaps cannot be shown
    size = -(-len(steps) // most)
    while sum(-(-len(run) // size) for run in runs) > most:
        size += 1
    return [run[at : at + size] for run in runs for at in range(0, len(run), size)]


def _runs_of_steps(steps: Sequence[TimedStep], ends: Mapping[int, int]) -> list[list[TimedStep]]:
    runs: list[list[TimedStep]] = [[steps[0]]]
    for before, after in pairwise(steps):
        if after[0] - ends.get(before[0], before[0]) > 1:
            runs.append([])
        runs[-1].append(after)
    return runs


# A line through few points hides which steps were recorded.
MAX_MARKERS = 64
MARKER_PX = 4

# Points of a line: an index into the axis's steps, and where it is drawn.
LinePoints = Sequence[tuple[int, float]]


def points_of(run: range, at: StepAxis) -> LinePoints:
    """The points of a run, one per step."""
    return [(index, at.position[index]) for index in run]


def line_over_steps(
    at: StepAxis,
    values: Sequence[float | None],
    name: str,
    line: PlotlyLine,
    unit: str,
    points: Callable[[range, StepAxis], LinePoints] = points_of,
    *,
    is_marked: bool | None = None,
) -> PlotlyTrace:
    """A line through a value of each step of the axis, broken at gaps; `line` is Plotly's style.

    With `is_marked`, each of few steps has a dot.
    """
    x: list[float | None] = []
    y: list[float | None] = []
    steps: list[str] = []
    for run in at.runs:
        drawn = points(run, at)
        # An empty point after each run keeps the line from crossing the gap.
        x += [*(place for _, place in drawn), at.position[run[-1]] + 0.5]
        y += [*(values[index] for index, _ in drawn), None]
        steps += [*(formatting.count(at.steps[index]) for index, _ in drawn), ""]
    trace: PlotlyTrace = {
        "type": "scatter",
        "mode": "lines+markers" if is_marked and len(at.steps) <= MAX_MARKERS else "lines",
        "name": name,
        "x": numbers(x[:-1]),
        "y": numbers(y[:-1]),
        "customdata": steps[:-1],
        "connectgaps": False,
        "line": line,
        "hovertemplate": f"step %{{customdata}}, {name}<br><b>%{{y:.3f}}{unit}</b><extra></extra>",
    }
    marker: PlotlyMarker = {"size": MARKER_PX, "color": line["color"]}
    return trace if is_marked is None else trace | {"marker": marker}


def area_over_steps(
    at: StepAxis,
    upper: Sequence[float | None],
    lower: Sequence[float | None],
    name: str,
    colour: str,
    points: Callable[[range, StepAxis], LinePoints] = points_of,
) -> PlotlyTrace:
    """The area between two lines over the steps of the axis, broken at gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    for run in at.runs:
        forth = list(points(run, at))
        back = forth[::-1]
        x += [*(place for _, place in forth + back), None]
        y += [upper[index] for index, _ in forth]
        y += [*(lower[index] for index, _ in back), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


# A time axis spans at least this share of a step, so that a small difference looks small.
_MIN_TIME_SPAN = 0.15


def time_axis(times_s: Sequence[float], theme: Theme) -> PlotlyAxis:
    """The y axis of step times, around all that are drawn, seconds."""
    low, high = min(times_s, default=0.0), max(times_s, default=1.0)
    height = max(high - low, _MIN_TIME_SPAN * high) or 1.0
    ends = [max(0.0, low - 0.06 * height), low + 1.06 * height]
    return axis(theme, showgrid=True, nticks=5, ticksuffix=" s ", range=ends)
