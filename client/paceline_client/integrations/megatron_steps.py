"""What one process of a Megatron job is doing, as the functions around it tell."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..topology import Topology
from .megatron_ids import UNKNOWN, Expected, Ids, nothing_expected

log = logging.getLogger("paceline_client")
CallT = TypeVar("CallT", bound=Callable[..., Any])

_COLLECTIVES = {
    "all-grads-sync": "grads-reduce-scatter",
    "layernorm-grads-all-reduce": "layernorm-grads-all-reduce",
    "non-tensor-parallel-grads-all-reduce": "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce": "embedding-grads-all-reduce",
}


def harmless(method: CallT) -> CallT:
    """The method, with every error logged in place of raised into training."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            log.debug("paceline: nothing was recorded", exc_info=True)
            return None

    return cast(CallT, call)


class Steps:
    """The step that runs: from the schedule's begin to the end of the optimizer's step.

    An evaluation or a checkpoint runs between steps: the step that follows is called by it.
    """

    def __init__(self, recorder: Any, topology: Topology, first_step: int) -> None:
        self.recorder = recorder
        self.topology = topology
        self.on = False  # whether what runs now is recorded
        self.expected = nothing_expected()
        self.tied = True  # whether the first and the last stage share the embedding
        self._number = first_step - 1
        self._counts = False
        self._step: Any = None
        self._kind = "first"
        self._open: dict[str, Any] = {}
        self._told: dict[Ids, dict[str, int]] = {}
        self._now: dict[str, int] = {}  # told of the forward that runs
        self._num_forwards = 0
        self._is_scheduled = False  # whether all forwards and backwards of the step have run
        self._warned = False

    def aside(self, kind: str) -> None:
        """An evaluation or a checkpoint runs."""
        if self._kind != "first":
            self._kind = kind

    @harmless
    def begin(self, expected: Expected, tied: bool = True) -> None:
        """A schedule begins to train on a batch."""
        told = None if self._counts else _iteration()
        if told == self._number and self._step is not None:
            self._leave(is_whole=False)
            return  # Megatron runs a step again to see whether it gets the same
        # An optimizer that is none of Megatron's has stepped unseen.
        self._leave(is_whole=self._is_scheduled)
        self._counts = self._counts or (told is not None and told <= self._number)
        self._number = self._number + 1 if told is None or self._counts else told
        self._step = self.recorder.step(self._number, kind=self._kind)
        self._step.__enter__()
        self.on = bool(self.recorder.is_recording)
        self.expected, self.tied = expected, tied
        self._told, self._num_forwards, self._is_scheduled = {}, 0, False

    @harmless
    def scheduled(self) -> None:
        """The schedule has run its forwards and backwards."""
        self._is_scheduled = True
        if self.on and not self._num_forwards:
            self._leave(is_whole=False)
            if not self._warned:
                log.warning("paceline: this schedule's forward steps are not those that are known")
            self._warned = True

    def forward_ids(self, microbatch: int | None, chunk: int | None) -> Ids:
        """Ids of a forward step: a stage with one model chunk tells none."""
        return (-1 if microbatch is None else microbatch, chunk or 0)

    @harmless
    def forward_begins(self, ids: Ids) -> Any:
        """A forward step begins."""
        self._now = {}
        self._num_forwards += 1
        return self._begin("forward-compute", ids)

    @harmless
    def forward_ended(self, begun: Any, ids: Ids, answer: Any) -> None:
        """It has ended, and answered the output and a number of tokens."""
        self.recorder.end(begun, **self._now)
        self._told[ids] = self._now
        self.expected.answered(answer[0] if isinstance(answer, tuple) else answer, ids)

    def tell(self, told: dict[str, int]) -> None:
        """Something is known of the micro-batch whose forward runs."""
        self._now.update(told)

    @harmless
    def backward_begins(self, outputs: Any) -> tuple[Any, Ids]:
        """The backward of a forward's outputs begins."""
        ids = self.expected.backward(outputs)
        return self._begin("backward-compute", ids), ids

    @harmless
    def backward_ended(self, begun: tuple[Any, Ids] | None, gradients: Any) -> None:
        """It has ended, and answered the gradients of the stage's inputs."""
        if begun is not None:
            self.recorder.end(begun[0], **self._told.pop(begun[1], {}))
            self.expected.answered(gradients, begun[1])

    @harmless
    def transfer_begins(self, optype: str, ids: Ids, size_bytes: int = 0) -> Any:
        """A send or a receive begins."""
        return self._begin(optype, ids, **({"bytes": size_bytes} if size_bytes else {}))

    @harmless
    def ended(self, begun: Any, **told: int) -> None:
        """What began has ended."""
        self.recorder.end(begun, **told)

    @harmless
    def heard(self, timer: str, starts: bool) -> None:
        """One of Megatron's timers starts or stops."""
        if timer.startswith("save-checkpoint"):
            self.aside("checkpoint")
        elif timer == "params-all-gather":
            self._gather(starts)
        elif not self.on:
            return
        elif timer == "batch-generator":
            self._switch("data-wait", starts)
        elif self._meets(_COLLECTIVES[timer]):
            self._switch(_COLLECTIVES[timer], starts)

    @harmless
    def optimizer_begins(self, synchronises: bool) -> None:
        """The optimizer begins: before it steps, all ranks may agree on the gradients' norm."""
        if self.on:
            self._switch("optimizer-clip-main-grad" if synchronises else "optimizer", True)

    @harmless
    def update_begins(self) -> None:
        """The gradients are ready, and parameters change from now on."""
        if self.on and "optimizer" not in self._open:
            self._switch("optimizer-clip-main-grad", False)
            self._switch("optimizer", True)

    @harmless
    def broken(self) -> None:
        """The step ended in an error."""
        self._leave(is_whole=False)

    @harmless
    def optimizer_ended(self) -> None:
        """The step is over, even if its gradients were not finite and changed nothing."""
        if self.on and "optimizer-clip-main-grad" in self._open:
            self.update_begins()
        self._switch("optimizer", False)
        self._leave(is_whole=True)

    def _gather(self, starts: bool) -> None:
        """Parameters that are gathered after a step are those of the next one."""
        if self._step is None or not self._is_data_parallel():
            return
        self._switch("optimizer", False)
        if starts:
            begun = self.recorder.begin("params-all-gather", step=self._number + 1, chunk=0)
            self._open["params-all-gather"] = begun
        else:
            self._switch("params-all-gather", False)

    def _meets(self, optype: str) -> bool:
        """Whether this rank has peers for it: without, the timer brackets nothing."""
        place = self.topology
        if optype == "embedding-grads-all-reduce":
            return self.tied and place.pp_size > 1 and place.stage in (0, place.pp_size - 1)
        if optype == "layernorm-grads-all-reduce":
            return place.tp_size > 1
        return self._is_data_parallel()

    def _is_data_parallel(self) -> bool:
        return self.topology.dp_size * self.topology.dsp_size > 1

    def _begin(self, optype: str, ids: Ids = UNKNOWN, **told: int) -> Any:
        return self.recorder.begin(optype, microbatch=ids[0], chunk=ids[1], **told)

    def _switch(self, optype: str, starts: bool) -> None:
        """One operation of a type at a time."""
        begun = self._open.pop(optype, None)
        if starts:
            self._open[optype] = self._begin(optype)
        elif begun is not None:
            self.recorder.end(begun)

    def _leave(self, is_whole: bool) -> None:
        """The step is over; one that was broken off is never declared done."""
        step, self._step, self.on = self._step, None, False
        if step is None:
            return
        if is_whole:
            self._kind = "train"
            step.__exit__(None, None, None)
        else:
            step.__exit__(RuntimeError, RuntimeError("the step was broken off"), None)


def _iteration() -> int | None:
    module = sys.modules.get("megatron.training.global_vars")
    try:
        told = module.get_args().curr_iteration if module is not None else None
        return told if isinstance(told, int) else None
    except Exception:  # not initialised, or of a version that keeps no such count
        return None
