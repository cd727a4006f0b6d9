"""A worker's current computation, and waits of the compute stream for a collective.

Any integration may end the computation. Waits are recorded only with GPU timing.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..guard import guarded
from ..recording.cuda import CudaSpan


class CurrentComputation:
    """A recorder's open computation; at most one at a time.

    DDP's backward returns only after its gradients are reduced. The hook of the last bucket ends
    the computation before that.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = weakref.ref(recorder)
        self._begun: Any = None
        self._operation: tuple[str, int, int] | None = None

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded; if not, attributes are not computed."""
        return bool(getattr(self._recorder(), "is_recording", True))

    @guarded()
    def begin(self, optype: str, microbatch: int = -1, chunk: int = -1, **attributes: int) -> None:
        """Begin a computation, after ending an open one."""
        self.end()
        recorder = self._recorder()
        if recorder is not None:
            self._operation = (optype, microbatch, chunk)
            self._begun = recorder.begin(optype, microbatch=microbatch, chunk=chunk, **attributes)

    @guarded()
    def may_wait(self) -> None:
        """Mark that a concurrent collective may hold up the open computation's kernels.

        While NCCL's kernels wait for other ranks, others wait for SMs or hardware queues.
        """
        if isinstance(self._begun, CudaSpan):
            self._begun.contains_waits = True

    @guarded()
    def end(self) -> None:
        """End the open computation, if any."""
        begun, self._begun = self._begun, None
        recorder = self._recorder()
        if begun is not None and recorder is not None:
            recorder.end(begun)

    @guarded()
    def pause(self) -> tuple[str, int, int] | None:
        """End the open computation for a wait; pass the result to `resume`."""
        paused = self._operation if self._begun is not None else None
        self.end()
        return paused

    @guarded()
    def resume(self, paused: tuple[str, int, int] | None) -> None:
        """Continue a paused computation as a new operation."""
        if paused is not None:
            self.begin(*paused)


_of_recorder: weakref.WeakKeyDictionary[Any, CurrentComputation] = weakref.WeakKeyDictionary()


def current_computation(recorder: Any) -> CurrentComputation:
    """The computation of a recorder, shared by all integrations of a process."""
    found = _of_recorder.get(recorder)
    if found is None:
        found = _of_recorder[recorder] = CurrentComputation(recorder)
    return found


@guarded()
def begin_wait(recorder: Any, until: Any) -> CudaSpan | None:
    """Begin a wait of the compute stream for the collective recorded by `until`.

    Call `end_with` on the result; None if there is nothing to record.
    """
    if not isinstance(until, CudaSpan) or not until.has_ended:
        return None
    begin = getattr(recorder, "begin_wait", None)  # substitutes for recorders may lack it
    begun = begin() if begin is not None else None
    return begun if isinstance(begun, CudaSpan) else None
