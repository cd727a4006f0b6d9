"""Tables as files: CSV for people and spreadsheets, Parquet for data frames."""

import csv
import io
from collections.abc import Callable, Iterator
from typing import BinaryIO

from app.cli.exporting.tables import KEY, TABLES, Result, Row
from app.cli.spreadsheet import cell

Write = Callable[[str, Result, BinaryIO], None]
_ROWS_AT_ONCE = 10_000


def write_csv(name: str, result: Result, file: BinaryIO) -> None:
    """The table of this name: a line of names, then one a row; unknown is empty."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*KEY, *TABLES[name].columns])
    lines.writerows(map(cell, row) for row in _rows(name, result))
    text.detach()


def write_parquet(name: str, result: Result, file: BinaryIO) -> None:
    """The same table, with types; unknown is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    columns = {**KEY, **TABLES[name].columns}
    schema = pa.schema([(column, kinds[kind]) for column, kind in columns.items()])
    with pq.ParquetWriter(file, schema) as writer:
        for rows in _together(_rows(name, result)):
            made = [
                pa.array(list(values), field.type)
                for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.table(made, schema=schema))


WRITERS: dict[str, Write] = {"csv": write_csv, "parquet": write_parquet}


def _rows(name: str, result: Result) -> Iterator[Row]:
    from app.cli.exporting.tables import key_of

    key = key_of(result)
    return ((*key, *row) for row in TABLES[name].rows(result))


def _together(rows: Iterator[Row]) -> Iterator[list[Row]]:
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if len(found) == _ROWS_AT_ONCE:
            yield found
            found = []
    if found:
        yield found
