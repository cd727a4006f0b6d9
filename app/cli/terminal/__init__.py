"""How is a result shown in a terminal?

Read `result.py` first. Progress goes to standard error, so that standard output is the result
alone.
Imported by: cli.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Column, Table


def stderr_console() -> Console:
    """A console on standard error."""
    return Console(stderr=True)


def plain_table(
    columns: Sequence[Column | str], rows: Iterable[Iterable[RenderableType]], **look: Any
) -> Table:
    """A table without lines; `look` are further options of rich's."""
    table = Table(*columns, box=None, pad_edge=False, **look)
    for row in rows:
        table.add_row(*row)
    return table


def right_aligned(*names: str) -> list[Column | str]:
    """Columns of numbers."""
    return [Column(name, justify="right") for name in names]
