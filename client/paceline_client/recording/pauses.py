"""Records interruptions of training on the host: waits for data and garbage collections."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import Any, Generic, Protocol, TypeVar

ItemT = TypeVar("ItemT")


class PauseSink(Protocol):
    """The recorder that waits and pauses are reported to."""

    def now_ns(self) -> int:
        """The recorder's clock."""

    def note_wait(self, begun_ns: int) -> None:
        """Record a wait for data that ends now."""

    def note_pause(self, begun_ns: int, duration_ns: int) -> None:
        """Record a garbage collection."""


class DataWaits(Generic[ItemT]):
    """An iterable, unchanged but for each wait for its next item being recorded."""

    def __init__(self, recorder: PauseSink, iterable: Iterable[ItemT]) -> None:
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
        if name.startswith("__"):  # copying and pickling ask before `__init__` has run
            raise AttributeError(name)
        return getattr(self._iterable, name)


MIN_PAUSE_NS = 100_000  # shorter pauses are frequent and explain nothing


class GcPauses:
    """Records each longer garbage collection as a gc-pause of the current step."""

    def __init__(self, recorder: PauseSink, min_ns: int = MIN_PAUSE_NS) -> None:
        self._recorder = weakref.ref(recorder)
        self._min_ns = min_ns
        self._begun_ns = 0
        gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """Remove the gc callback."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = perf_counter_ns()
            return
        duration_ns = perf_counter_ns() - self._begun_ns
        if duration_ns < self._min_ns or not self._begun_ns:
            return
        recorder = self._recorder()
        if recorder is None:
            self.stop()
        else:
            recorder.note_pause(self._begun_ns, duration_ns)
