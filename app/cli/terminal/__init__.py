"""How is a result shown in a terminal?

Read `result.py` first. Progress goes to standard error, so that standard output is the result
alone.
Imported by: cli.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Column, Table

from app.cli.output import STANDARD_OUTPUT, write_json


def stderr_console() -> Console:
    """A console on standard error."""
    return Console(stderr=True)


def show(
    json_out: Path | None,
    as_json: Callable[[], object],
    in_words: Callable[[], RenderableType],
    *,
    crop: bool = True,
) -> None:
    """Write a result as JSON to the file of --json, and print it unless that was the terminal."""
    if json_out is not None:
        write_json(as_json(), json_out)
    if json_out != STANDARD_OUTPUT:
        Console().print(in_words(), crop=crop)


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
