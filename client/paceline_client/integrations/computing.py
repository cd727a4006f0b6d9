"""The computation that a worker is in, which whoever sees its end first may end."""

from __future__ import annotations

import weakref
from typing import Any

from ..cuda_span import CudaSpan


class Computing:
    """At most one computation of a recorder at a time.

    A backward of DDP returns only when its gradients have been reduced. Its computation is over
    before that: the hook of the last bucket sees to it that it ends then.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = weakref.ref(recorder)
        self._begun: Any = None
        self._what: tuple[str, int, int] | None = None

    @property
    def is_recording(self) -> bool:
        """Whether the step that runs is recorded: if not, nobody asks what is known of it."""
        return bool(getattr(self._recorder(), "is_recording", True))

    def begin(self, optype: str, microbatch: int = -1, chunk: int = -1, **told: int) -> None:
        """A computation begins; one that is still open ends."""
        self.end()
        recorder = self._recorder()
        if recorder is not None:
            self._what = (optype, microbatch, chunk)
            self._begun = recorder.begin(optype, microbatch=microbatch, chunk=chunk, **told)

    def may_wait(self) -> None:
        """A collective is under way beside the open computation, and may hold up its kernels.

        Where NCCL's kernels wait for other ranks, others wait for processors or hardware queues.
        """
        if isinstance(self._begun, CudaSpan):
            self._begun.contains_waits = True

    def end(self) -> None:
        """The open computation ends now, if there is one."""
        begun, self._begun = self._begun, None
        recorder = self._recorder()
        if begun is not None and recorder is not None:
            recorder.end(begun)

    def pause(self) -> tuple[str, int, int] | None:
        """The worker stops computing to wait; `resume` takes the answer."""
        what = self._what if self._begun is not None else None
        self.end()
        return what

    def resume(self, what: tuple[str, int, int] | None) -> None:
        """It goes on with what it was computing, in a new operation."""
        if what is not None:
            self.begin(*what)


_of_recorder: weakref.WeakKeyDictionary[Any, Computing] = weakref.WeakKeyDictionary()


def computing(recorder: Any) -> Computing:
    """What this recorder's worker computes: one for all integrations of a process."""
    found = _of_recorder.get(recorder)
    if found is None:
        found = _of_recorder[recorder] = Computing(recorder)
    return found
