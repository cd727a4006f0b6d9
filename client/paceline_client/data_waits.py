"""How long training waits for its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .recorder import Recorder

ItemT = TypeVar("ItemT")


class DataWaits(Generic[ItemT]):
    """What is iterated over, unchanged, with each wait for its next item recorded."""

    def __init__(self, recorder: Recorder, iterable: Iterable[ItemT]) -> None:
        self._recorder = recorder
        self._iterable = iterable
        self._iterator: Iterator[ItemT] | None = None

    def __iter__(self) -> DataWaits[ItemT]:
        again = DataWaits(self._recorder, self._iterable)
        again._iterator = iter(self._iterable)
        return again

    def __next__(self) -> ItemT:
        if self._iterator is None:
            self._iterator = iter(self._iterable)
        begun_ns = self._recorder.now_ns()
        item = next(self._iterator)
        self._recorder.note_wait(begun_ns)
        return item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask before there is anything to ask
            raise AttributeError(name)
        return getattr(self._iterable, name)
