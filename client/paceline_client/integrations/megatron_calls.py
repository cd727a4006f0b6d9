"""What the arguments and answers of Megatron's functions say, in words of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

from .megatron_ids import Expected, Ids, Table, nothing_expected
from .megatron_steps import Steps, harmless
from .megatron_timers import OnlyHeard

Calls = Callable[[Any, Any], Any]  # reads one argument of a call

TRANSFERS = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next", "wait_on_reqs")
_RECEIVES = {"recv_prev": "forward-recv", "recv_next": "backward-recv"}
_SENDS = {"tensor_send_next": "forward-send", "tensor_send_prev": "backward-send"}


def argument(function: Any, name: str) -> Calls:
    """How to read one argument of a call of a function.

    Raises:
        AttributeError: it takes none of this name.
    """
    parameters = signature(function).parameters
    if name not in parameters:
        raise AttributeError(f"{function.__qualname__} takes no {name} in this megatron-core")
    position, default = list(parameters).index(name), parameters[name].default

    def read(args: Any, kwargs: Any) -> Any:
        if name in kwargs:
            return kwargs[name]
        return args[position] if position < len(args) else default

    return read


@harmless
def config_of(model: Any) -> Any:
    """Of an optimizer, a model or the first of its chunks, under whatever wraps it."""
    module = model[0] if isinstance(model, (list, tuple)) else model
    while getattr(module, "config", None) is None and hasattr(module, "module"):
        module = module.module
    return getattr(module, "config", None)


@contextlib.contextmanager
def listening(steps: Steps, config: Any) -> Iterator[None]:
    """Meanwhile a configuration without timers has some, so that they can be heard."""
    is_set = _lend_timers(steps, config)
    try:
        yield
    finally:
        if is_set:
            config.timers = None


@harmless
def _lend_timers(steps: Steps, config: Any) -> bool:
    if getattr(config, "timers", "none to set") is not None:
        return False
    config.timers = OnlyHeard(steps.heard)
    return True


def expected(steps: Steps, table: Table, call: Mapping[str, Any]) -> Expected:
    """The order in which a schedule's call will compute."""
    try:
        model, config = call["model"], config_of(call["model"])
        num_chunks = len(model) if isinstance(model, (list, tuple)) else 1
        group_size = getattr(config, "microbatch_group_size_per_vp_stage", None) or 1
        order = table(int(call["num_microbatches"]), num_chunks, int(group_size))
        stage, last = steps.topology.stage, steps.topology.pp_size - 1
        return Expected(order, num_chunks, stage == 0, stage == last)
    except Exception:
        return nothing_expected()


@harmless
def shares_embedding(model: Any) -> bool:
    """Whether the first and the last stage hold the same embedding, and reduce its gradients."""
    module = model[0] if isinstance(model, (list, tuple)) else model
    while module is not None:
        shared = getattr(module, "share_embeddings_and_output_weights", None)
        if shared is not None:
            return bool(shared)
        module = getattr(module, "module", None)
    return True


@harmless
def synchronises(optimizer: Any) -> bool:
    """Whether all ranks agree on something before an optimizer steps."""
    parts = [optimizer, *getattr(optimizer, "chained_optimizers", ())]
    return any(
        (getattr(config_of(each), "clip_grad", None) or 0.0) > 0.0
        or getattr(each, "grad_scaler", None) is not None
        for each in parts
    )


@harmless
def transfers_of(steps: Steps, asked: Mapping[str, Any]) -> Transfers:
    """What one call sends and receives; None where it cannot be told."""
    return Transfers(steps, asked)


class Transfers:
    """The sends and receives of one call, which Megatron makes as one."""

    def __init__(self, steps: Steps, asked: Mapping[str, Any]) -> None:
        self._steps = steps
        self._sends = [
            steps.transfer_begins(optype, steps.expected.of(asked[name]), _size_of(asked[name]))
            for name, optype in _SENDS.items()
            if asked[name] is not None
        ]
        self._receives = {
            name: (optype, steps.expected.received(optype))
            for name, optype in _RECEIVES.items()
            if asked[name]
        }
        if self._receives:
            # One wait for all: when a send of them has ended, only its receiver can tell.
            self._end_sends()
        self._waits = bool(asked["wait_on_reqs"])
        self._received = (
            [steps.transfer_begins(*receive) for receive in self._receives.values()]
            if self._waits
            else []
        )

    def end(self, answer: Any) -> Any:
        """The call is over; its answer, in which a receive that goes on is followed."""
        self._end_sends()
        for begun in self._received:
            self._steps.ended(begun)
        works = answer[-1] if isinstance(answer, tuple) else None
        if not self._waits and isinstance(works, dict):
            self._follow(works)
        return answer

    @harmless
    def _follow(self, works: dict[str, Any]) -> None:
        for name, (optype, ids) in self._receives.items():
            if name in works:
                works[name] = Arriving(works[name], self._steps, optype, ids)

    def _end_sends(self) -> None:
        while self._sends:
            self._steps.ended(self._sends.pop())


class Arriving:
    """A receive that goes on behind the computation: what counts is how long it is waited for."""

    def __init__(self, work: Any, steps: Steps, optype: str, ids: Ids) -> None:
        self._work = work
        self._steps = steps
        self._what = (optype, ids)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the work's own."""
        begun = self._steps.transfer_begins(*self._what) if self._steps.on else None
        done = self._work.wait(*args, **kwargs)
        self._steps.ended(begun)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _size_of(tensor: Any) -> int:
    return int(getattr(tensor, "nbytes", 0))
