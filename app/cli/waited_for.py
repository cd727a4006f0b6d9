"""Arrivals as they are shown in a terminal: whom the others waited for at collectives."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app import words
from app.charts.arrivals import RankWaits, is_shown, ranks
from app.cli.files import printable

Result = dict[str, Any]

_MAX_ROWS = 5
# Ranks that the others waited less for are not listed.
_MIN_SHARE = 0.01


def waited_for(result: Result) -> list[RenderableType]:
    """The ranks most waited for, where that is worth saying."""
    if not is_shown(result):
        return []
    every = ranks(result)
    listed = [each for each in every if each.is_culprit or each.share >= _MIN_SHARE]
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "place"):
        table.add_column(name, no_wrap=True)
    table.add_column("host", overflow="fold")
    for name in ("waited for", "of step", "times late", "own delay"):
        table.add_column(name, justify="right")
    for each in listed[:_MAX_ROWS]:
        # Plain text: hosts may have brackets, which rich would read as markup.
        table.add_row(*map(Text, _row(each)))
    return [
        Text("\nWaited for (mean a step, at collectives)", style="bold"),
        table,
        *_more(listed[_MAX_ROWS:]),
        Text(_occurrences(result), style="dim"),
    ]


def _more(left_out: Sequence[RankWaits]) -> list[Text]:
    if not left_out:
        return []
    most = words.percent(left_out[0].share)
    return [Text(f"{words.counted(len(left_out), 'more rank')}, each at {most} or less")]


def _row(each: RankWaits) -> list[str]:
    host = printable(each.host) if each.host else "unknown"
    gpu = "" if each.local_rank is None else f", GPU {each.local_rank}"
    late = words.percent(each.late_share)
    own = "unknown" if each.own_delay_s is None else words.seconds(max(0.0, each.own_delay_s))
    share = words.percent(each.share)
    return [
        str(each.rank),
        each.place,
        host + gpu,
        words.seconds(each.waited_for_s),
        share,
        late,
        own,
    ]


def _occurrences(result: Result) -> str:
    found = result["arrivals"]
    share = words.percent(found["waiting_share"] or 0.0)
    number = words.counted(found["num_occurrences"], "collective")
    return f"Ranks spent {share} of their time waiting for later ones, in {number}."
