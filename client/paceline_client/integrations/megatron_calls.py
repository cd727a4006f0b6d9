"""Reads the arguments, results and timers of Megatron's functions.

Timers bracket work that has no function of its own. Megatron looks up a timer by name at each start
and stop, at any logging level (below the level it is a dummy); a wrapper observes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

from ..recorder import never_raises
from .megatron_steps import ExpectedTransfers, Ids, ScheduleTable, Steps, unknown_schedule

TimerCallback = Callable[[str, bool], None]  # the timer's name, and whether it starts

TIMER_NAMES = frozenset(
    (
        "all-grads-sync",
        "batch-generator",
        "embedding-grads-all-reduce",
        "layernorm-grads-all-reduce",
        "non-tensor-parallel-grads-all-reduce",
        "params-all-gather",
        "save-checkpoint",
        "save-checkpoint-non-persistent",
    )
)


class ObservedTimer:
    """One of Megatron's timers, with a callback on start and stop."""

    def __init__(self, timer: Any, name: str, callback: TimerCallback) -> None:
        self._timer = timer
        self._name = name
        self._callback = callback

    def start(self, *args: Any, **kwargs: Any) -> Any:
        """Start, then call back: the timer may first wait for all ranks."""
        done = self._timer.start(*args, **kwargs)
        self._callback(self._name, True)
        return done

    def stop(self, *args: Any, **kwargs: Any) -> Any:
        """Call back, then stop: the timer may wait for the GPU or for all ranks."""
        self._callback(self._name, False)
        return self._timer.stop(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


class DummyTimer:
    """Measures nothing."""

    def start(self, barrier: bool = False) -> None:
        """Nothing to start."""

    def stop(self, barrier: bool = False) -> None:
        """Nothing to stop."""


class TimersStandIn:
    """Substitutes Megatron's timers if a training script has none."""

    def __init__(self, callback: TimerCallback) -> None:
        self._timers = {name: ObservedTimer(DummyTimer(), name, callback) for name in TIMER_NAMES}
        self._other = DummyTimer()

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of this name."""
        return self._timers.get(name, self._other)


def observe_timers(original: Callable[..., Any], callback: TimerCallback) -> Callable[..., Any]:
    """`Timers.__call__` that returns observed timers."""

    def call(timers: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        timer = original(timers, name, *args, **kwargs)
        return ObservedTimer(timer, name, callback) if name in TIMER_NAMES else timer

    return call


Calls = Callable[[Any, Any], Any]  # reads one argument of a call

TRANSFERS = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next", "wait_on_reqs")
_RECEIVES = {"recv_prev": "forward-recv", "recv_next": "backward-recv"}
_SENDS = {"tensor_send_next": "forward-send", "tensor_send_prev": "backward-send"}


def argument(function: Any, name: str) -> Calls:
    """A function that reads one argument of a call.

    Raises:
        AttributeError: there is no parameter of this name.
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


@never_raises
def config_of(model: Any) -> Any:
    """The config of an optimizer, a model or its first chunk, under any wrappers."""
    module = model[0] if isinstance(model, (list, tuple)) else model
    while getattr(module, "config", None) is None and hasattr(module, "module"):
        module = module.module
    return getattr(module, "config", None)


@contextlib.contextmanager
def with_timers(steps: Steps, config: Any) -> Iterator[None]:
    """Give a config without timers observed ones for the duration of the block."""
    is_set = _lend_timers(steps, config)
    try:
        yield
    finally:
        if is_set:
            config.timers = None


@never_raises
def _lend_timers(steps: Steps, config: Any) -> bool:
    if getattr(config, "timers", "none to set") is not None:
        return False
    config.timers = TimersStandIn(steps.on_timer)
    return True


def expected_transfers(
    steps: Steps, table: ScheduleTable, call: Mapping[str, Any]
) -> ExpectedTransfers:
    """The expected transfers of a schedule's call."""
    try:
        model, config = call["model"], config_of(call["model"])
        num_chunks = len(model) if isinstance(model, (list, tuple)) else 1
        group_size = getattr(config, "microbatch_group_size_per_vp_stage", None) or 1
        order = table(int(call["num_microbatches"]), num_chunks, int(group_size))
        stage, last = steps.topology.stage, steps.topology.pp_size - 1
        return ExpectedTransfers(order, num_chunks, stage == 0, stage == last)
    except Exception:
        return unknown_schedule()


@never_raises
def shares_embedding(model: Any) -> bool:
    """Whether first and last stage share the embedding and reduce its gradients."""
    module = model[0] if isinstance(model, (list, tuple)) else model
    while module is not None:
        shared = getattr(module, "share_embeddings_and_output_weights", None)
        if shared is not None:
            return bool(shared)
        module = getattr(module, "module", None)
    return True


@never_raises
def synchronises(optimizer: Any) -> bool:
    """Whether the optimizer synchronises all ranks before it steps."""
    parts = [optimizer, *getattr(optimizer, "chained_optimizers", ())]
    return any(
        (getattr(config_of(each), "clip_grad", None) or 0.0) > 0.0
        or getattr(each, "grad_scaler", None) is not None
        for each in parts
    )


@never_raises
def transfers_of(steps: Steps, asked: Mapping[str, Any]) -> Transfers:
    """The transfers of one call; None on errors."""
    return Transfers(steps, asked)


class Transfers:
    """The sends and receives of one call, which Megatron issues together."""

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
            # There is one wait for all, so the end of a send is unknown.
            self._end_sends()
        self._waits = bool(asked["wait_on_reqs"])
        self._received = (
            [steps.transfer_begins(*receive) for receive in self._receives.values()]
            if self._waits
            else []
        )

    def end(self, answer: Any) -> Any:
        """End the call; returns its result, with pending receives wrapped."""
        self._end_sends()
        for begun in self._received:
            self._steps.ended(begun)
        works = answer[-1] if isinstance(answer, tuple) else None
        if not self._waits and isinstance(works, dict):
            self._follow(works)
        return answer

    @never_raises
    def _follow(self, works: dict[str, Any]) -> None:
        for name, (optype, ids) in self._receives.items():
            if name in works:
                works[name] = PendingReceive(works[name], self._steps, optype, ids)

    def _end_sends(self) -> None:
        while self._sends:
            self._steps.ended(self._sends.pop())


class PendingReceive:
    """A receive that overlaps computation; its wait is recorded."""

    def __init__(self, work: Any, steps: Steps, optype: str, ids: Ids) -> None:
        self._work = work
        self._steps = steps
        self._transfer = (optype, ids)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait, and record it."""
        begun = self._steps.transfer_begins(*self._transfer) if self._steps.on else None
        done = self._work.wait(*args, **kwargs)
        self._steps.ended(begun)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _size_of(tensor: Any) -> int:
    return int(getattr(tensor, "nbytes", 0))
