"""Slowdowns as rows of blocks and cells that fit into the terminal."""

from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from app.cli.colours import cell_style, full_share, share_style

TIMES = "\u00d7"
_CELL_WIDTH = 5
_MAX_ROWS = 32
_LEVELS = "▁▂▃▄▅▆▇█"


def times(ratio: float, digits: int) -> str:
    """A ratio as it is written: 1.42 and the sign."""
    return f"{ratio:.{digits}f}{TIMES}"


class Steps:
    """The step slowdowns as a line of blocks as wide as the terminal, and in words."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._steps: list[int] = result["steps"]
        self._slowdowns: list[float] = result["step_slowdown"]
        self._skipped: list[dict[str, Any]] = result["skipped_steps"]

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
            f"slowest is step {slowest:,} at {times(worst, 2)}"
            + (f"; a block is the slowest of {size:,} steps" if size > 1 else "")
        )
        for skip in self._skipped[:3]:
            yield Text(f"step {skip['step']:,} is left out: {skip['reason']}")
        if len(self._skipped) > 3:
            yield Text(f"and {len(self._skipped) - 3:,} more steps are left out")


class Heatmap:
    """Worker slowdowns, dp ranks along and stages down, binned by their maximum to fit."""

    def __init__(self, slowdown: list[list[float]]) -> None:
        self._by_stage = [list(stage) for stage in zip(*slowdown, strict=True)]

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
