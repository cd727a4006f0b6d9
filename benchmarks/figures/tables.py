"""The two tables of docs/benchmarks.md: rows measured now, and rows as they were measured before.

A row's first cell is its name in backticks. Rows that are not measured again stay as they are, with
their own machine, commit and date.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.errors import InvalidRequest

BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A heading, the columns after the name, and the rows' names in order."""

    heading: str
    columns: Cells
    names: Cells


def rewritten(text: str, tables: Sequence[Table], measured: Mapping[str, Cells]) -> str:
    """The page with its tables made again from the rows that it has and the measured ones.

    Raises:
        InvalidRequest: the page lacks its two markers.
    """
    before, begin, rest = text.partition(BEGIN)
    between, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidRequest(f"the page of figures has no {BEGIN} followed by {END}")
    rows = {**dated_rows(between), **measured}
    parts = "\n\n".join(_written(table, rows) for table in tables)
    return f"{before}{BEGIN}\n\n{parts}\n\n{END}{after}"


def dated_rows(text: str) -> dict[str, Cells]:
    """The rows that tables have, by name; headers and rules are none."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if cells and (name := re.fullmatch(r"`([^`]+)`", cells[0])):
            rows[name[1]] = tuple(cell.replace("\\|", "|") for cell in cells[1:])
    return rows


def _written(table: Table, rows: Mapping[str, Cells]) -> str:
    header = ("row", *table.columns)
    lines = [
        f"### {table.heading}\n",
        _line(header),
        _line(["---"] * len(header)),
        *(
            _line((f"`{name}`", *_fitting(table, rows[name])))
            for name in table.names
            if name in rows
        ),
    ]
    return "\n".join(lines)


def _fitting(table: Table, cells: Cells) -> Cells:
    """A row of an earlier layout has empty cells, and keeps none beyond the last column."""
    return (*cells, *[""] * len(table.columns))[: len(table.columns)]


def _line(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
