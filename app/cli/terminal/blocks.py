"""Slowdowns as rows of blocks and cells that fit the terminal, in the heatmaps' colours."""

from collections.abc import Sequence
from math import inf
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from app.charts.base.theme import DARK, SCALE_MAX
from app.formatting import TIMES
from app.result.window_result import WindowResult

_INK_ON_DARK = "#ECEEF2"
_INK_ON_BRIGHT = "#0D0F12"
# Below this nothing stands out, and a bar in the background's colour would be invisible.
_QUIET_BELOW = 1.05


def cell_style(slowdown: float) -> str:
    """Background and text colour of a heatmap cell, with enough contrast."""
    ground = DARK.colour_at(slowdown)
    red, green, blue = bytes.fromhex(ground.removeprefix("#"))
    is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 120
    return f"{_INK_ON_BRIGHT if is_bright else _INK_ON_DARK} on {ground}"


def share_style(slowdown: float) -> str:
    """Colour of a bar."""
    if slowdown < _QUIET_BELOW:
        return "dim"
    return DARK.colour_at(max(slowdown, 1.2))


def full_share(slowdown: float) -> float:
    """Fill of a bar: 0 at slowdown 1, 1 at the end of the scale."""
    return min(max((slowdown - 1.0) / (SCALE_MAX - 1.0), 0.0), 1.0)


Figure = TypeVar("Figure")


def known(figure: Figure | None) -> Figure:
    """The figure, which every analysed window has."""
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
        self._by_stage = [
            [-inf if figure is None else figure for figure in stage]
            for stage in zip(*slowdown, strict=True)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the rows."""
        num_stages, num_dp_ranks = len(self._by_stage), len(self._by_stage[0])
        high = _bin_size(num_stages, _MAX_ROWS)
        labels = [f"stage {_span(at, high, num_stages)}" for at in range(0, num_stages, high)]
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


def _span(first: int, size: int, total: int) -> str:
    last = min(first + size, total) - 1
    return f"{first}" if last == first else f"{first}-{last}"


def _bin_size(num_values: int, num_cells: int) -> int:
    return -(-num_values // num_cells)


def _binned(values: list[float], size: int) -> list[float]:
    return [max(values[at : at + size]) for at in range(0, len(values), size)]
