"""Slowdowns as rows of blocks and cells that fit the terminal, in the heatmaps' colours."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from app.formatting import TIMES
from app.result.window_result import WindowResult

# The dark theme's stops (design: slowdown scale), in red, green and blue; the domain is fixed.
_STOPS: tuple[tuple[float, tuple[int, int, int]], ...] = (
    (1.02, (0x26, 0x2B, 0x32)),
    (1.05, (0x43, 0x38, 0x2A)),
    (1.10, (0x6B, 0x4A, 0x22)),
    (1.20, (0xAE, 0x65, 0x1D)),
    (1.30, (0xE5, 0x86, 0x38)),
    (1.40, (0xFF, 0xB2, 0x64)),
    (1.50, (0xFF, 0xE6, 0xBC)),
)
_INK_ON_DARK = "#ECEEF2"
_INK_ON_BRIGHT = "#0D0F12"
# Below this nothing stands out, and a bar in the background's colour would be invisible.
_QUIET_BELOW = 1.05


def colour(slowdown: float) -> tuple[int, int, int]:
    """Red, green and blue of a slowdown, clamped to 1.02 to 1.5."""
    above = bisect_right([at for at, _ in _STOPS], slowdown)
    if above == 0:
        return _STOPS[0][1]
    if above == len(_STOPS):
        return _STOPS[-1][1]
    (low, dark), (high, bright) = _STOPS[above - 1], _STOPS[above]
    share = (slowdown - low) / (high - low)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(dark, bright, strict=True))
    return red, green, blue


def cell_style(slowdown: float) -> str:
    """Background and text colour of a heatmap cell, with enough contrast."""
    red, green, blue = colour(slowdown)
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    ink = _INK_ON_BRIGHT if is_bright else _INK_ON_DARK
    return f"{ink} on #{red:02x}{green:02x}{blue:02x}"


def share_style(slowdown: float) -> str:
    """Colour of a bar."""
    if slowdown < _QUIET_BELOW:
        return "dim"
    return "#{:02x}{:02x}{:02x}".format(*colour(max(slowdown, 1.2)))


def full_share(slowdown: float) -> float:
    """Fill of a bar: 0 at slowdown 1, 1 at the end of the scale."""
    return min(max((slowdown - 1.0) / (_STOPS[-1][0] - 1.0), 0.0), 1.0)


Figure = TypeVar("Figure")


def known(figure: Figure | None) -> Figure:
    """A figure that no analysed window lacks."""
    assert figure is not None  # noqa: S101
    return figure


_CELL_WIDTH = 5
_MAX_ROWS = 32
_LEVELS = "▁▂▃▄▅▆▇█"


def format_times(ratio: float, digits: int) -> str:
    """A ratio with the multiplication sign."""
    return f"{ratio:.{digits}f}{TIMES}"


class StepBlocks:
    """Step slowdowns as a line of blocks as wide as the terminal, and in words."""

    def __init__(self, result: WindowResult) -> None:
        self._steps = result.steps
        self._slowdowns = [known(slowdown) for slowdown in result.step_slowdown]
        self._skipped = result.skipped_steps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the lines."""
        size = _bin_size(len(self._slowdowns), options.max_width)
        line = Text()
        for slowdown in _binned(self._slowdowns, size):
            level = round(full_share(slowdown) * (len(_LEVELS) - 1))
            line.append(_LEVELS[level], style=share_style(slowdown))
        yield line
        worst = max(self._slowdowns)
        slowest = self._steps[self._slowdowns.index(worst)]
        yield Text(
            f"{len(self._steps):,} steps, {self._steps[0]:,} to {self._steps[-1]:,}; "
            f"slowest is step {slowest:,} at {format_times(worst, 2)}"
            + (f"; a block is the slowest of {size:,} steps" if size > 1 else "")
        )
        for skip in self._skipped[:3]:
            yield Text(f"step {skip.step:,} is left out: {skip.reason}")
        if len(self._skipped) > 3:
            yield Text(f"and {len(self._skipped) - 3:,} more steps are left out")


class WorkerHeatmap:
    """Worker slowdowns, dp ranks along and stages down, binned by their maximum to fit.

    None is a worker that is missing.
    """

    def __init__(self, slowdown: Sequence[Sequence[float | None]]) -> None:
        known = [[-inf if each is None else each for each in of_rank] for of_rank in slowdown]
        self._by_stage = [list(stage) for stage in zip(*known, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the rows."""
        num_stages, num_dp_ranks = len(self._by_stage), len(self._by_stage[0])
        high = _bin_size(num_stages, _MAX_ROWS)
        labels = [_label("stage", at, high, num_stages) for at in range(0, num_stages, high)]
        margin = max(len(label) for label in labels) + 1
        wide = _bin_size(num_dp_ranks, max((options.max_width - margin) // _CELL_WIDTH, 1))
        yield Text(" " * margin + "dp ranks " + _span(0, num_dp_ranks, num_dp_ranks) + " →")
        for label, at in zip(labels, range(0, num_stages, high), strict=True):
            stages = self._by_stage[at : at + high]
            hottest = [max(column) for column in zip(*stages, strict=True)]
            row = Text(label.ljust(margin))
            for slowdown in _binned(hottest, wide):
                row.append(_cell(slowdown), style=cell_style(slowdown))
            yield row
        if high * wide > 1:
            yield Text(f"A cell is the slowest of {wide:,} dp ranks {TIMES} {high:,} stages.")


def _cell(slowdown: float) -> str:
    if slowdown == -inf:
        return "-".center(_CELL_WIDTH)
    digits = 2 if slowdown < 9.995 else 1 if slowdown < 99.95 else 0
    return f"{slowdown:.{digits}f}".center(_CELL_WIDTH)


def _label(axis: str, first: int, size: int, total: int) -> str:
    return f"{axis} {_span(first, size, total)}"


def _span(first: int, size: int, total: int) -> str:
    last = min(first + size, total) - 1
    return f"{first}" if last == first else f"{first}-{last}"


def _bin_size(num_values: int, num_cells: int) -> int:
    return -(-num_values // num_cells)


def _binned(values: list[float], size: int) -> list[float]:
    return [max(values[at : at + size]) for at in range(0, len(values), size)]
