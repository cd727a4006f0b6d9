"""Records FSDP2 (`fully_shard`): each gather of parameters and scatter of gradients.

    from paceline_client.integrations import fsdp2

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    fsdp2.attach(recorder, model, optimizer=optimizer)

Through FSDPModule's public `set_custom_all_gather` and `set_custom_reduce_scatter`. Where a
gather blocks the worker (as on gloo), the computation around it is recorded in parts.
"""

from __future__ import annotations

import contextlib
import logging
from importlib import import_module
from typing import Any

from .computing import computing
from .ddp import Work, _Passes, record_optimizer
from .fsdp2_waits import ModuleWaits, Reduced

log = logging.getLogger("paceline_client")


def attach(
    recorder: Any,
    model: Any,
    *,
    optimizer: Any = None,
    chunk: int = -1,
    computes: bool = True,
    work: Work | None = None,
    all_gather: Any = None,
    reduce_scatter: Any = None,
) -> bool:
    """Record a model under FSDP2 from now on; whether that was possible.

    Those of the model that it has by now go on doing the work: custom ones, and what
    `set_symm_mem_for_comm` and the like have chosen, which are to be called before. `all_gather`
    and `reduce_scatter` are others in their place.
    """
    try:
        kind = import_module("torch.distributed.fsdp").FSDPModule
        sharded = [module for module in model.modules() if isinstance(module, kind)]
        if not sharded:
            raise TypeError("no module of it is sharded: call fully_shard first")
        reduced = Reduced(recorder)
        with contextlib.ExitStack() as undoing:  # in part is worse than not at all
            waits = [ModuleWaits(recorder, reduced) for _ in sharded]
            for module, its in zip(sharded, waits):
                _record(recorder, module, all_gather, reduce_scatter, its, undoing)
            if computes:
                _Passes(recorder, chunk, work).watch(model)
            if optimizer is not None:
                record_optimizer(recorder, optimizer)
            undoing.pop_all()
        for module, its in zip(sharded, waits):
            its.watch(module)
    except Exception as error:
        log.warning("paceline: FSDP2 is not recorded: %s", error)
        return False
    return True


def _record(
    recorder: Any,
    module: Any,
    gather: Any,
    scatter: Any,
    waits: ModuleWaits,
    undoing: contextlib.ExitStack,
) -> None:
    """Both collectives of a module, and how they are put back."""
    gathers = _present(module, "_all_gather_comm") or _Gather()
    undoing.callback(module.set_custom_all_gather, gathers)
    module.set_custom_all_gather(_Recorded(recorder, gather or gathers, _GATHER, waits))
    scatters = _present(module, "_reduce_scatter_comm") or _Scatter()
    undoing.callback(module.set_custom_reduce_scatter, scatters)
    module.set_custom_reduce_scatter(_Recorded(recorder, scatter or scatters, _SCATTER, waits))


_GATHER, _SCATTER = "params-all-gather", "grads-reduce-scatter"


def _present(module: Any, name: str) -> Any:
    """The collective that a module has now; None where this version of PyTorch does not tell."""
    try:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        found = getattr(groups[0], name)
    except Exception:
        return None
    while isinstance(found, _Recorded):
        found = found._inner
    return found


class _Default:
    """What FSDP does without a custom one: an ordinary tensor, an ordinary collective."""

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return import_module("torch").empty(*size, dtype=dtype, device=device)


class _Gather(_Default):
    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> Any:
        return import_module("torch.distributed").all_gather_into_tensor(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class _Scatter(_Default):
    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        return import_module("torch.distributed").reduce_scatter_tensor(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


class _Recorded:
    """A collective of FSDP, recorded from its call to its end."""

    def __init__(
        self, recorder: Any, inner: Any, optype: str, waits: ModuleWaits | None = None
    ) -> None:
        self._recorder = recorder
        self._inner = inner
        self._optype = optype
        self._waits = waits

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """As the collective that is recorded does it."""
        if self._waits is not None and self._optype == _SCATTER:
            self._waits.reduced.waited()
        return self._inner.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **call: Any) -> Any:
        # The last one that FSDP's collectives take, whether it is told by name or by position.
        is_async = bool(call.get("async_op", args and args[-1] is True))
        around = computing(self._recorder)
        paused = None if is_async or not _blocks(args, call) else around.pause()
        begun = self._recorder.begin(self._optype)
        around.may_wait()
        work = self._inner(*args, **call)
        if is_async and work is not None:
            with contextlib.suppress(Exception):  # a backend without futures does not tell when
                work.get_future().add_done_callback(lambda _: self._recorder.end(begun))
        else:
            self._recorder.end(begun)
        if self._waits is not None:
            posted = self._waits.gathered if self._optype == _GATHER else self._waits.reduced.last
            posted(begun)
        around.resume(paused)
        return work


def _blocks(args: Any, call: Any) -> bool:
    """Whether a collective that is called so makes the worker wait."""
    with contextlib.suppress(Exception):  # of a version that tells no tensor of this name
        sent = call["input_tensor"] if "input_tensor" in call else args[1]
        return bool(sent.device.type == "cpu")
    return False
