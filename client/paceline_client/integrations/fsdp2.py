"""Records FSDP2 (`fully_shard`): gathers of parameters, scatters of gradients, and waits.

    from paceline_client.integrations import fsdp2

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    fsdp2.attach(recorder, model, optimizer=optimizer)

Uses FSDPModule's public `set_custom_all_gather` and `set_custom_reduce_scatter`. If a gather blocks
the worker (as on gloo), the computation around it is recorded in parts.

FSDP has the stream wait for a gather in `wait_for_unshard`, for the previous scatter in
`post_backward`, and for the last ones at the end of the backward. None of these has a public hook,
so the methods of the existing objects are wrapped; waits are not recorded if a version of PyTorch
lacks the method. A wait ends with the collective's own event, so that neither later copies nor a
slow host count as waiting.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..guard import guarded
from ..recording.cuda import CudaSpan
from .computing import begin_wait, current_computation
from .ddp import Work, _Passes, record_optimizer

log = logging.getLogger("paceline_client")


class ReduceWait:
    """The newest scatter of a model, and the open wait for it."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._last: CudaSpan | None = None
        self._waiting: CudaSpan | None = None
        self._is_ending = False

    @guarded()
    def last(self, begun: Any) -> None:
        """Set the newest scatter."""
        self._last = begun if isinstance(begun, CudaSpan) else None

    @guarded()
    def wait(self) -> None:
        """Begin a possible wait of the compute stream."""
        self._waiting = begin_wait(self._recorder, self._last)

    @guarded()
    def waited(self) -> None:
        """End the wait, if one is open."""
        begun, self._waiting = self._waiting, None
        if begun is not None and self._last is not None:
            begun.end_with(self._last)

    @guarded()
    def module_done(self) -> None:
        """A module's `post_backward` has ended; within the final callback, more may follow."""
        self.waited()
        if self._is_ending:
            self.wait()

    @guarded()
    def begin_end(self) -> None:
        """The backward's final callback begins; it waits for all scatters."""
        self._is_ending = True
        self.wait()

    @guarded()
    def end(self) -> None:
        """The final callback has ended."""
        self._is_ending = False
        self.waited()


class GatherWait:
    """A module's gather that has not been waited for yet."""

    def __init__(self, recorder: Any, reduced: ReduceWait) -> None:
        self._recorder = recorder
        self.reduced = reduced
        self._gathered: CudaSpan | None = None
        self._is_watched = False

    @guarded()
    def gathered(self, begun: Any) -> None:
        """Set the newest gather."""
        self._gathered = begun if self._is_watched and isinstance(begun, CudaSpan) else None

    def watch(self, module: Any) -> None:
        """Wrap the methods in which the compute stream waits, if this PyTorch has them."""
        try:
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        except Exception:
            log.debug("paceline: FSDP's waits cannot be seen", exc_info=True)
            return
        # Only one module's callback is called: that of the first with gradients.
        end = "_root_post_backward_final_callback"
        _wrap_method(state, end, self.reduced.begin_end, self.reduced.end)
        found = [group for group in groups if group is not None]
        for group in found:
            _wrap_method(group, "post_backward", self.reduced.wait, self.reduced.module_done)
        # Several groups of a module share its collective, so gathers cannot be assigned.
        if len(found) == 1:
            self._is_watched = _replace_method(found[0], "wait_for_unshard", self._wait)

    def _wait(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        gathered, self._gathered = self._gathered, None
        begun = begin_wait(self._recorder, gathered)
        try:
            return original(*args, **kwargs)
        finally:
            if begun is not None and gathered is not None:
                _end_with(begun, gathered)


@guarded()
def _end_with(begun: CudaSpan, gathered: CudaSpan) -> None:
    begun.end_with(gathered, at_once=True)


def _wrap_method(
    owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]
) -> None:
    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before()
        try:
            return original(*args, **kwargs)
        finally:
            after()

    _replace_method(owner, name, call)


def _replace_method(owner: Any, name: str, call: Callable[..., Any]) -> bool:
    """Replace a method of this object by `call(original, ...)`; whether it has one."""
    original = getattr(owner, name, None)
    if not callable(original):
        return False
    # Wrap only once if attached again.
    original = getattr(original, "paceline_original", original)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    wrapped.paceline_original = original  # type: ignore[attr-defined]
    try:
        setattr(owner, name, wrapped)
    except AttributeError:
        return False
    return True


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
    """Record a model under FSDP2 from now on; returns whether that was possible.

    The model's present collectives keep doing the work, including custom ones; call
    `set_symm_mem_for_comm` and the like before. `all_gather` and `reduce_scatter` replace them.
    """
    try:
        kind = import_module("torch.distributed.fsdp").FSDPModule
        sharded = [module for module in model.modules() if isinstance(module, kind)]
        if not sharded:
            raise TypeError("no module is sharded: call fully_shard first")
        reduced = ReduceWait(recorder)
        with contextlib.ExitStack() as undoing:  # partial recording is worse than none
            waits = [GatherWait(recorder, reduced) for _ in sharded]
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
    waits: GatherWait,
    undoing: contextlib.ExitStack,
) -> None:
    """Wrap both collectives of a module, with callbacks that restore them."""
    gathers = _present(module, "_all_gather_comm") or _Gather()
    undoing.callback(module.set_custom_all_gather, gathers)
    module.set_custom_all_gather(_Recorded(recorder, gather or gathers, _GATHER, waits))
    scatters = _present(module, "_reduce_scatter_comm") or _Scatter()
    undoing.callback(module.set_custom_reduce_scatter, scatters)
    module.set_custom_reduce_scatter(_Recorded(recorder, scatter or scatters, _SCATTER, waits))


_GATHER, _SCATTER = "params-all-gather", "grads-reduce-scatter"


def _present(module: Any, name: str) -> Any:
    """The module's present collective; None if this PyTorch does not expose it."""
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
    """FSDP's default: an ordinary tensor, an ordinary collective."""

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
        self, recorder: Any, inner: Any, optype: str, waits: GatherWait | None = None
    ) -> None:
        self._recorder = recorder
        self._inner = inner
        self._optype = optype
        self._waits = waits

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """Allocate as the wrapped collective does."""
        if self._waits is not None and self._optype == _SCATTER:
            self._waits.reduced.waited()
        return self._inner.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **call: Any) -> Any:
        # async_op is the last parameter of FSDP's collectives, by name or position.
        is_async = bool(call.get("async_op", args and args[-1] is True))
        paused, begun = self._begins(is_blocking=not is_async and _blocks(args, call))
        work = self._inner(*args, **call)
        self._posted(work if is_async else None, paused, begun)
        return work

    @guarded((None, None))
    def _begins(self, *, is_blocking: bool) -> tuple[Any, Any]:
        around = current_computation(self._recorder)
        paused = around.pause() if is_blocking else None
        begun = self._recorder.begin(self._optype)
        around.may_wait()
        return paused, begun

    @guarded()
    def _posted(self, work: Any, paused: Any, begun: Any) -> None:
        if work is not None:
            with contextlib.suppress(Exception):  # a backend without futures has no end
                work.get_future().add_done_callback(lambda _: self._recorder.end(begun))
        else:
            self._recorder.end(begun)
        if self._waits is not None:
            posted = self._waits.gathered if self._optype == _GATHER else self._waits.reduced.last
            posted(begun)
        current_computation(self._recorder).resume(paused)


def _blocks(args: Any, call: Any) -> bool:
    """Whether a call of a collective blocks the worker."""
    with contextlib.suppress(Exception):  # a version without this argument
        sent = call["input_tensor"] if "input_tensor" in call else args[1]
        return bool(sent.device.type == "cpu")
    return False
