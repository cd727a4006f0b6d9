"""The axes of a timeline: seconds since the step began, and where the lanes of both runs are.

The recorded run is above, the ideal run beneath; each stage has a lane in both.
"""

import math
from dataclasses import dataclass

from app.charts.base.figure import axis, title
from app.charts.base.plotly import PlotlyAxis
from app.charts.base.theme import Theme

# (up to so many stages, height of a lane, of its bar, of its transfers): pixels.
_LANE_SIZES = ((8, 45, 21, 6), (16, 32, 15, 5), (1 << 30, 22, 10, 4))
_HEADER_PX = 30
_BETWEEN_PX = 28
RUNS = ("recorded", "ideal")


@dataclass(frozen=True, slots=True)
class LaneLayout:
    """Heights in pixels from the top of the plot; `run` is 0 for recorded and 1 for ideal."""

    pp_size: int

    @property
    def lane_px(self) -> int:
        """From one stage to the next."""
        return self._size[1]

    @property
    def bar_px(self) -> int:
        """A bar of computing or waiting."""
        return self._size[2]

    @property
    def transfer_px(self) -> int:
        """A bar of moving data."""
        return self._size[3]

    @property
    def height_px(self) -> int:
        """The whole plot."""
        return self.bottom(1) + 8

    @property
    def clear_px(self) -> int:
        """Distance of an outline from its bar."""
        return 4 if self.lane_px > 40 else 2

    def top(self, run: int) -> int:
        """Top of the run's lanes, under its header."""
        of_run = _HEADER_PX + self.pp_size * self.lane_px + _BETWEEN_PX
        return _HEADER_PX + run * of_run

    def bottom(self, run: int) -> int:
        """Bottom of the run's lanes."""
        return self.top(run) + self.pp_size * self.lane_px

    def bar_y(self, run: int, stage: int) -> float:
        """The middle of a stage's bars."""
        return self.top(run) + stage * self.lane_px + self.clear_px + self.bar_px / 2

    def transfer_y(self, run: int, stage: int) -> float:
        """The middle of its transfers, beneath."""
        below = self.bar_px / 2 + self.clear_px + self.transfer_px / 2 + 2
        return self.bar_y(run, stage) + below

    @property
    def _size(self) -> tuple[int, int, int, int]:
        return next(size for size in _LANE_SIZES if self.pp_size <= size[0])


_MAX_TICKS = 13
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "\u00b5s"))


def time_axis(from_s: float, to_s: float, theme: Theme) -> PlotlyAxis:
    """The axis between two moments; the reader may zoom along it."""
    every_s = _round_spacing(max(to_s - from_s, 1e-9) / _MAX_TICKS)
    first = math.ceil(from_s / every_s - 1e-9)
    last = math.floor(to_s / every_s + 1e-9)
    ticks_s = [number * every_s for number in range(first, last + 1)]
    return axis(
        theme,
        range=[from_s, to_s],
        tickvals=ticks_s,
        ticktext=[_tick_label(tick_s, every_s, to_s) for tick_s in ticks_s],
        showgrid=True,
        fixedrange=False,
        title=title("time since the step began", theme),
    )


def _tick_label(at_s: float, every_s: float, to_s: float) -> str:
    # By the end of the axis, so that all its labels have one unit.
    size_s, unit = next((each for each in _UNITS if to_s >= each[0]), _UNITS[-1])
    digits = max(0, -math.floor(math.log10(every_s / size_s) + 1e-9))
    return f"{at_s / size_s + 0.0:,.{digits}f} {unit}"


def _round_spacing(spacing_s: float) -> float:
    """The smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is at least the spacing."""
    power = 10.0 ** math.floor(math.log10(spacing_s))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= spacing_s * 0.999)
