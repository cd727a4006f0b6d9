"""Rows that are fetched page by page while somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from .errors import QueryError

Row = TypeVar("Row")


class Rows(Generic[Row]):
    """Flat dicts, all with the same keys; each loop over them asks the server anew.

    What is not known is None. Times are texts in UTC, as 2026-01-31T12:00:00Z.
    """

    def __init__(self, row_type: type[Row], fetch: Callable[[], Iterator[Row]]) -> None:
        self._fetch = fetch
        self.columns: tuple[str, ...] = tuple(row_type.__annotations__)
        types = {name: str(each) for name, each in row_type.__annotations__.items()}
        self._numbers = [name for name, each in types.items() if "int" in each or "float" in each]

    def __iter__(self) -> Iterator[Row]:
        return self._fetch()

    def all(self) -> list[Row]:
        """All of them; `pandas.DataFrame` takes that, too."""
        return [*self]

    def first(self, most: int) -> list[Row]:
        """The first few, without asking for more pages than they are on."""
        return [*islice(self._fetch(), most)]

    def to_pandas(self) -> Any:
        """All of them as a pandas.DataFrame; where it is empty, it has its columns.

        Times are timestamps, and a number that is not known is NaN.

        Raises:
            QueryError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise QueryError("pandas is not installed here: pip install pandas") from error
        rows = cast("list[dict[str, Any]]", self.all())
        frame = pandas.DataFrame(rows, columns=[*self.columns])
        for name in self._numbers:
            frame[name] = pandas.to_numeric(frame[name])
        for name in self.columns:
            if name == "at" or name.endswith("_at"):
                frame[name] = pandas.to_datetime(frame[name], utc=True, format="ISO8601")
        return frame
