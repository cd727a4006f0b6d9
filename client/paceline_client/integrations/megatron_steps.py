"""The current step of a Megatron process, and the micro-batch of each transfer.

Receives of one direction arrive in the order in which the stage computes, since its peer sends in
that order. A send is identified by its tensor, which a forward or backward step has returned.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from ..recorder import never_raises
from ..topology import Topology

Ids = tuple[int, int]  # micro-batch, model chunk on the stage
UNKNOWN_IDS: Ids = (-1, -1)

# (micro-batches, model chunks, micro-batches of a group) -> the order of (micro-batch, chunk)
ScheduleTable = Callable[[int, int, int], "list[Ids]"]


def one_chunk(num_microbatches: int, num_chunks: int, group_size: int) -> list[Ids]:
    """The order where a stage has one model chunk."""
    return [(microbatch, 0) for microbatch in range(num_microbatches)]


class ExpectedTransfers:
    """Ids of a stage's receives in one step, and of the tensors that its passes returned."""

    def __init__(
        self, order: list[Ids], num_chunks: int, is_first_stage: bool, is_last_stage: bool
    ) -> None:
        last = num_chunks - 1
        backwards = [(microbatch, last - chunk) for microbatch, chunk in order]
        self._receives: dict[str, Iterator[Ids]] = {
            # The first chunk of the model gets data, not a transfer.
            "forward-recv": iter([ids for ids in order if not is_first_stage or ids[1] > 0]),
            "backward-recv": iter([ids for ids in backwards if not is_last_stage or ids[1] < last]),
        }
        self._backwards = iter(backwards)
        self._of_tensor: dict[int, Ids] = {}

    def received(self, optype: str) -> Ids:
        """Ids of the next receive."""
        return next(self._receives[optype], UNKNOWN_IDS)

    def backward(self, outputs: Any) -> Ids:
        """Ids of the backward of a forward's outputs."""
        expected = next(self._backwards, UNKNOWN_IDS)
        return self.of(outputs, expected)

    def answered(self, tensors: Any, ids: Ids) -> None:
        """Remember the tensors (one or a list) that a pass returned."""
        for tensor in _listed(tensors):
            self._of_tensor[id(tensor)] = ids

    def of(self, tensors: Any, otherwise: Ids = UNKNOWN_IDS) -> Ids:
        """Ids of the pass that returned these tensors."""
        known = (self._of_tensor.get(id(tensor)) for tensor in _listed(tensors))
        return next((ids for ids in known if ids is not None), otherwise)


def _listed(tensors: Any) -> list[Any]:
    found = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return [tensor for tensor in found if tensor is not None]


def unknown_schedule() -> ExpectedTransfers:
    """For an unknown schedule: receives have no ids."""
    expected = ExpectedTransfers([], 1, True, True)
    expected._receives = dict.fromkeys(expected._receives, repeat(UNKNOWN_IDS))
    return expected


log = logging.getLogger("paceline_client")

_COLLECTIVES = {
    "all-grads-sync": "grads-reduce-scatter",
    "layernorm-grads-all-reduce": "layernorm-grads-all-reduce",
    "non-tensor-parallel-grads-all-reduce": "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce": "embedding-grads-all-reduce",
}


class Steps:
    """The current step: from the start of the schedule to the end of the optimizer's step.

    An evaluation or a checkpoint between steps determines the kind of the next step.
    """

    def __init__(self, recorder: Any, topology: Topology, first_step: int) -> None:
        self.recorder = recorder
        self.topology = topology
        self.on = False  # whether the current work is recorded
        self.expected = unknown_schedule()
        self.tied = True  # whether the first and the last stage share the embedding
        self._number = first_step - 1
        self._counts = False
        self._step: Any = None
        self._kind = "first"
        self._open: dict[str, Any] = {}
        self._attributes: dict[Ids, dict[str, int]] = {}
        self._current: dict[str, int] = {}  # attributes of the running forward
        self._num_forwards = 0
        self._is_scheduled = False  # whether all forwards and backwards of the step have run
        self._warned = False

    def aside(self, kind: str) -> None:
        """An evaluation or a checkpoint begins."""
        if self._kind != "first":
            self._kind = kind

    @never_raises
    def begin(self, expected: ExpectedTransfers, tied: bool = True) -> None:
        """A schedule begins to train on a batch."""
        iteration = None if self._counts else _iteration()
        if iteration == self._number and self._step is not None:
            self._leave(is_whole=False)
            return  # Megatron repeats a step to check its result
        # A foreign optimizer's step is not seen.
        self._leave(is_whole=self._is_scheduled)
        self._counts = self._counts or (iteration is not None and iteration <= self._number)
        self._number = self._number + 1 if iteration is None or self._counts else iteration
        self._step = self.recorder.step(self._number, kind=self._kind)
        self._step.__enter__()
        self.on = bool(self.recorder.is_recording)
        self.expected, self.tied = expected, tied
        self._attributes, self._num_forwards, self._is_scheduled = {}, 0, False

    @never_raises
    def scheduled(self) -> None:
        """The schedule has run its forwards and backwards."""
        self._is_scheduled = True
        if self.on and not self._num_forwards:
            self._leave(is_whole=False)
            if not self._warned:
                log.warning("paceline: this schedule does not call the known forward steps")
            self._warned = True

    def forward_ids(self, microbatch: int | None, chunk: int | None) -> Ids:
        """Ids of a forward step; a stage with one model chunk passes none."""
        return (-1 if microbatch is None else microbatch, chunk or 0)

    @never_raises
    def forward_begins(self, ids: Ids) -> Any:
        """A forward step begins."""
        self._current = {}
        self._num_forwards += 1
        return self._begin("forward-compute", ids)

    @never_raises
    def forward_ended(self, begun: Any, ids: Ids, answer: Any) -> None:
        """A forward step ended; `answer` is its output, or (output, number of tokens)."""
        self.recorder.end(begun, **self._current)
        self._attributes[ids] = self._current
        self.expected.answered(answer[0] if isinstance(answer, tuple) else answer, ids)

    def tell(self, attributes: dict[str, int]) -> None:
        """Add attributes of the micro-batch in the running forward."""
        self._current.update(attributes)

    @never_raises
    def backward_begins(self, outputs: Any) -> tuple[Any, Ids]:
        """The backward of these outputs begins."""
        ids = self.expected.backward(outputs)
        return self._begin("backward-compute", ids), ids

    @never_raises
    def backward_ended(self, begun: tuple[Any, Ids] | None, gradients: Any) -> None:
        """A backward ended and returned the gradients of the stage's inputs."""
        if begun is not None:
            self.recorder.end(begun[0], **self._attributes.pop(begun[1], {}))
            self.expected.answered(gradients, begun[1])

    @never_raises
    def transfer_begins(self, optype: str, ids: Ids, size_bytes: int = 0) -> Any:
        """A send or a receive begins."""
        return self._begin(optype, ids, **({"bytes": size_bytes} if size_bytes else {}))

    @never_raises
    def ended(self, begun: Any, **attributes: int) -> None:
        """End an operation."""
        self.recorder.end(begun, **attributes)

    @never_raises
    def on_timer(self, timer: str, starts: bool) -> None:
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

    @never_raises
    def optimizer_begins(self, synchronises: bool) -> None:
        """The optimizer begins; all ranks may first synchronise on the gradient norm."""
        if self.on:
            self._switch("optimizer-clip-main-grad" if synchronises else "optimizer", True)

    @never_raises
    def update_begins(self) -> None:
        """The gradients are ready; the update of the parameters begins."""
        if self.on and "optimizer" not in self._open:
            self._switch("optimizer-clip-main-grad", False)
            self._switch("optimizer", True)

    @never_raises
    def broken(self) -> None:
        """The step ended in an error."""
        self._leave(is_whole=False)

    @never_raises
    def optimizer_ended(self) -> None:
        """The step is over, even if infinite gradients prevented the update."""
        if self.on and "optimizer-clip-main-grad" in self._open:
            self.update_begins()
        self._switch("optimizer", False)
        self._leave(is_whole=True)

    def _gather(self, starts: bool) -> None:
        """A gather of parameters after a step belongs to the next step."""
        if self._step is None or not self._is_data_parallel():
            return
        self._switch("optimizer", False)
        if starts:
            begun = self.recorder.begin("params-all-gather", step=self._number + 1, chunk=0)
            self._open["params-all-gather"] = begun
        else:
            self._switch("params-all-gather", False)

    def _meets(self, optype: str) -> bool:
        """Whether this rank has peers for the collective; without, the timer brackets nothing."""
        place = self.topology
        if optype == "embedding-grads-all-reduce":
            return self.tied and place.pp_size > 1 and place.stage in (0, place.pp_size - 1)
        if optype == "layernorm-grads-all-reduce":
            return place.tp_size > 1
        return self._is_data_parallel()

    def _is_data_parallel(self) -> bool:
        return self.topology.dp_size * self.topology.dsp_size > 1

    def _begin(self, optype: str, ids: Ids = UNKNOWN_IDS, **attributes: int) -> Any:
        return self.recorder.begin(optype, microbatch=ids[0], chunk=ids[1], **attributes)

    def _switch(self, optype: str, starts: bool) -> None:
        """Begin or end an operation; at most one per type is open."""
        begun = self._open.pop(optype, None)
        if starts:
            self._open[optype] = self._begin(optype)
        elif begun is not None:
            self.recorder.end(begun)

    def _leave(self, is_whole: bool) -> None:
        """Leave the step; an incomplete one is not declared done."""
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
        number = module.get_args().curr_iteration if module is not None else None
        return number if isinstance(number, int) else None
    except Exception:  # not initialised, or a version without this count
        return None
