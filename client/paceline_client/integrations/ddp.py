"""Records DistributedDataParallel: forwards, backwards, and each bucket of gradients.

    from paceline_client.integrations import ddp

    model = DistributedDataParallel(model)
    ddp.attach(recorder, model, optimizer=optimizer)
    for number, (inputs, targets) in enumerate(recorder.data(loader)):
        with recorder.step(number):
            loss_of(model(inputs), targets).backward()
            optimizer.step()

Inside a pipeline, whose stages record their computations themselves, record only the buckets:
`ddp.attach(recorder, stage_module, chunk=0, computes=False)`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ..guard import guarded
from ..recorder import NULL
from .computing import CurrentComputation, begin_wait, current_computation

log = logging.getLogger("paceline_client")

# Of a forward's arguments: what `Recorder.op` takes, for example {"tokens": inputs.numel()}.
Work = Callable[..., Mapping[str, int]]

# Forwards in a row with autograd on, without a backward, that are worth a warning.
MAX_UNSEEN_BACKWARDS = 64


def attach(
    recorder: Any,
    model: Any,
    *,
    optimizer: Any = None,
    chunk: int = -1,
    computes: bool = True,
    work: Work | None = None,
    hook: Callable[[Any, Any], Any] | None = None,
    state: Any = None,
) -> bool:
    """Record a model under DDP from now on; returns whether that was possible.

    DDP takes one communication hook: pass your own, if any, as `hook` and `state`; it is called.
    """
    try:
        model.register_comm_hook(state, _buckets(recorder, chunk, hook or _all_reduce(model)))
        if computes:
            _Passes(recorder, chunk, work).watch(model)
        if optimizer is not None:
            record_optimizer(recorder, optimizer)
    except Exception as error:
        log.warning("paceline: DDP is not recorded: %s", error)
        return False
    return True


def record_optimizer(recorder: Any, optimizer: Any) -> None:
    """Record each step of an optimizer by its public hooks."""
    begun: list[Any] = []

    @guarded()
    def begins(*_: Any) -> None:
        begun.append(recorder.begin("optimizer"))

    @guarded()
    def ends(*_: Any) -> None:
        if begun:
            recorder.end(begun.pop())

    optimizer.register_step_pre_hook(begins)
    optimizer.register_step_post_hook(ends)


def _buckets(
    recorder: Any, chunk: int, inner: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """The communication hook, called by DDP with each bucket as it fills."""

    # No annotations: DDP compares them with its own.
    def record_bucket(state, bucket):  # type: ignore[no-untyped-def]
        begun = _bucket_begins(recorder, chunk, bucket)

        def reduced(future: Any) -> Any:
            _bucket_ends(recorder, begun)
            return future.value()

        return inner(state, bucket).then(reduced)

    return record_bucket


@guarded()
def _bucket_begins(recorder: Any, chunk: int, bucket: Any) -> Any:
    around = current_computation(recorder)
    begun = recorder.begin("grads-reduce-scatter", chunk=chunk)
    around.may_wait()
    if bucket.is_last():
        # Runs before DDP's own callback, which waits for the buckets.
        at_end_of_backward(functools.partial(_waits_for_buckets, recorder, around, begun))
    return begun


@guarded()
def _bucket_ends(recorder: Any, begun: Any) -> None:
    recorder.end(begun)


@guarded()
def _waits_for_buckets(recorder: Any, around: CurrentComputation, last: Any) -> None:
    """End the computation, and record the stream's wait for the last bucket."""
    around.end()
    begun = begin_wait(recorder, until=last)
    if begun is not None:
        begun.end_with(last, at_once=True)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call at the end of the running backward; at once if that is impossible."""
    try:
        variable: Any = import_module("torch.autograd").Variable
        variable._execution_engine.queue_callback(call)
    except Exception:
        call()


def _all_reduce(model: Any) -> Callable[[Any, Any], Any]:
    """What DDP does without a hook: the mean over its process group, equal to the last bit.

    PyTorch's own `allreduce_hook` divides by the number of ranks, where DDP multiplies by its
    inverse: of three ranks, losses would differ.
    """
    distributed = import_module("torch.distributed")
    group = model.process_group
    factor = 1.0 / distributed.get_world_size(group)

    def all_reduce(_state: Any, bucket: Any) -> Any:
        gradients = bucket.buffer().mul_(factor)
        begun = distributed.all_reduce(gradients, group=group, async_op=True)
        return begun.get_future().then(lambda future: future.value()[0])

    return all_reduce


class _Passes:
    """Forwards and backwards of a model outside a pipeline."""

    def __init__(self, recorder: Any, chunk: int, work: Work | None) -> None:
        self._computing: CurrentComputation = current_computation(recorder)
        self._chunk = chunk
        self._work = work
        self._current: Mapping[str, int] = {}  # attributes of the running forward
        self._num_without = 0  # forwards since the last backward
        self._warned = False

    def __reduce__(self) -> Any:
        """A copied or pickled model gets hooks without the recorder."""
        return _unwatched, ()

    def watch(self, model: Any) -> None:
        """Put hooks on the model, and on the outputs of each forward."""
        model.register_forward_pre_hook(self._forward_begins, with_kwargs=True)
        model.register_forward_hook(self._forward_ends, with_kwargs=True)

    def _attributes(self, args: Any, kwargs: Any) -> Mapping[str, int]:
        if self._work is None or not self._computing.is_recording:
            return {}
        try:
            return self._work(*args, **kwargs)
        except Exception:
            log.debug("paceline: the work of a micro-batch is unknown", exc_info=True)
            return {}

    @guarded()
    def _forward_begins(self, _model: Any, args: Any, kwargs: Any) -> None:
        self._current = self._attributes(args, kwargs)
        self._computing.begin("forward-compute", chunk=self._chunk, **self._current)

    @guarded()
    def _forward_ends(self, _model: Any, _args: Any, _kwargs: Any, outputs: Any) -> None:
        self._computing.end()
        try:
            if not self._computing.is_recording or not _is_learning():
                return
            self._count()
            backward = _Backward(self, dict(self._current))
            # All of them: which ones the loss depends on is unknown.
            for tensor in _tensors(outputs):
                if tensor.requires_grad and not getattr(tensor, "is_leaf", False):
                    tensor.register_hook(backward.begins)
        except Exception:  # outputs may be anything
            log.debug("paceline: a backward is not recorded", exc_info=True)

    def _count(self) -> None:
        """Warn if no backward is ever seen."""
        self._num_without += 1
        if self._num_without == MAX_UNSEEN_BACKWARDS and not self._warned:
            self._warned = True
            log.warning(
                "paceline: %d forwards and no backward that could be recorded: the loss must "
                "depend on tensors that the forward returns, also in lists, dicts or dataclasses",
                MAX_UNSEEN_BACKWARDS,
            )

    @guarded()
    def backward_begins(self, attributes: Mapping[str, int]) -> None:
        """The first gradient of an output exists."""
        self._num_without = 0
        self._computing.begin("backward-compute", chunk=self._chunk, **attributes)

    @guarded()
    def backward_ends(self) -> None:
        """Autograd has finished the backward."""
        self._computing.end()


class _Backward:
    """The backward of one forward, which begins with the first gradient of any of its outputs."""

    def __init__(self, passes: _Passes, attributes: Mapping[str, int]) -> None:
        self._passes = passes
        self._attributes = attributes
        self._is_open = False

    @guarded()
    def begins(self, _gradient: Any) -> None:
        """The gradient of an output exists."""
        if not self._is_open:
            self._is_open = True
            self._passes.backward_begins(self._attributes)
            at_end_of_backward(self._ends)

    def _ends(self) -> None:
        self._is_open = False
        self._passes.backward_ends()


def _unwatched() -> _Passes:
    return _Passes(NULL, -1, None)


def _is_learning() -> bool:
    """Whether autograd records computations."""
    torch: Any = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def _tensors(outputs: Any) -> list[Any]:
    if hasattr(outputs, "register_hook"):
        return [outputs]
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    elif dataclasses.is_dataclass(outputs):
        outputs = [getattr(outputs, each.name, None) for each in dataclasses.fields(outputs)]
    if isinstance(outputs, (list, tuple)):
        return [tensor for each in outputs for tensor in _tensors(each)]
    return []
