"""A recorder that measures its own overhead: time spent and number of operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter
from typing import Any


class Metered:
    """A recorder for integrations that times each operation and forwards all other calls."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.num_ops = 0
        self.spent_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def begin(self, optype: str, **about: int) -> Any:
        """As the recorder does it."""
        began_s = perf_counter()
        begun = self._recorder.begin(optype, **about)
        self.spent_s += perf_counter() - began_s
        return begun

    def end(self, begun: Any, **told: int) -> None:
        """As the recorder does it."""
        began_s = perf_counter()
        self._recorder.end(begun, **told)
        self.spent_s += perf_counter() - began_s
        self.num_ops += 1

    @contextlib.contextmanager
    def op(self, optype: str, **about: int) -> Iterator[None]:
        """As the recorder does it."""
        begun = self.begin(optype, **about)
        try:
            yield
        finally:
            self.end(begun)
