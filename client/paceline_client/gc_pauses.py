"""Notes when Python's garbage collector has stopped training."""

from __future__ import annotations

import gc
import weakref
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recorder import Recorder

LEAST_NS = 100_000  # shorter pauses explain nothing, and there are hundreds of them


class GcPauses:
    """Records each longer collection as gc-pause, of the step that it happens in."""

    def __init__(self, recorder: Recorder, least_ns: int = LEAST_NS) -> None:
        self._recorder = weakref.ref(recorder)
        self._least_ns = least_ns
        self._begun_ns = 0
        gc.callbacks.append(self._heard)

    def stop(self) -> None:
        """Listen no longer."""
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = perf_counter_ns()
            return
        duration_ns = perf_counter_ns() - self._begun_ns
        if duration_ns < self._least_ns or not self._begun_ns:
            return
        recorder = self._recorder()
        if recorder is None:
            self.stop()
        else:
            recorder.note_pause(self._begun_ns, duration_ns)
