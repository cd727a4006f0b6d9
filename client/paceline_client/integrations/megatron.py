"""Records Megatron-LM and other users of megatron-core.

    import paceline_client.integrations.megatron as paceline

    paceline.install()  # once Megatron has initialised its parallel state

This wraps the three schedules of megatron-core, `forward_step`, `backward_step`, the method that
makes all transfers between stages, the timers, and the optimizers' steps. `uninstall()` restores
them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..recorder import NULL
from ..startup import start as start_recorder
from ..topology import Topology, from_megatron
from .megatron_calls import (
    TRANSFERS,
    argument,
    config_of,
    expected_transfers,
    observe_timers,
    shares_embedding,
    synchronises,
    transfers_of,
    with_timers,
)
from .megatron_steps import ScheduleTable, Steps, one_chunk

log = logging.getLogger("paceline_client")

SCHEDULES = "megatron.core.pipeline_parallel.schedules"
P2P = "megatron.core.pipeline_parallel.p2p_communication"
TIMERS = "megatron.core.timers"
OPTIMIZERS = "megatron.core.optimizer.optimizer"

_installed: Installed | None = None
_recorder: Any = None  # returned by the first successful install()


def install(
    recorder: Any = None, *, topology: Topology | None = None, first_step: int = 0, **start: Any
) -> Any:
    """Record this process from now on; returns the recorder, `NULL` if recording is impossible.

    Never raises. Later calls, as for each model chunk, return the same recorder. `start` are
    arguments of `paceline_client.start`, which default to the environment. `first_step` is used if
    Megatron-LM's own iteration count is not available.
    """
    global _installed, _recorder
    if _recorder is not None:
        return _recorder
    try:
        place = topology or from_megatron()
        start.setdefault("framework", "megatron-core")
        recorder = recorder or start_recorder(topology=place, **start)
        if getattr(place, "problem", None) is None:  # else Megatron may not be initialised yet
            _recorder = recorder
        if place.records and recorder is not NULL:
            _installed = Installed(Steps(recorder, place, first_step))
    except Exception as error:
        log.warning("paceline: Megatron is not recorded: %s", error)
    return recorder or NULL


def uninstall() -> None:
    """Restore Megatron's functions; the recorder keeps running."""
    global _installed, _recorder
    if _installed is not None:
        _installed.undo()
    _installed = _recorder = None


def tell(**attributes: int) -> None:
    """Set attributes of the micro-batch in the running forward step: `tokens`, `seq_len_sq`.

    Call it from the training script's forward step, with numbers that are on the host.
    """
    if _installed is not None:
        _installed.steps.tell(attributes)


class Installed:
    """Wraps Megatron's functions.

    Raises:
        ImportError, AttributeError: this version of Megatron lacks one of them.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._before: list[tuple[Any, str, Any]] = []
        self._is_stepping = False
        try:
            self._wrap_schedules(import_module(SCHEDULES))
            self._replace(import_module(P2P).P2PCommunicator, "_communicate", self._communicate)
            timers = import_module(TIMERS).Timers
            self._replace(
                timers, "__call__", lambda original: observe_timers(original, steps.on_timer)
            )
            self._wrap_optimizers(import_module(OPTIMIZERS).MegatronOptimizer)
        except Exception:
            self.undo()
            raise

    def undo(self) -> None:
        """Restore the functions."""
        while self._before:
            owner, name, original = self._before.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(wrap(original)))
        self._before.append((owner, name, original))

    def _wrap_schedules(self, schedules: Any) -> None:
        table = schedules.get_schedule_table
        for name, order in (
            ("forward_backward_no_pipelining", one_chunk),
            ("forward_backward_pipelining_without_interleaving", one_chunk),
            ("forward_backward_pipelining_with_interleaving", table),
        ):
            self._replace(schedules, name, functools.partial(self._schedule, order))
        self._replace(schedules, "forward_step", self._forward_step)
        self._replace(schedules, "backward_step", self._backward_step)

    def _wrap_optimizers(self, base: Any) -> None:
        import_module("megatron.core.optimizer.distrib_optimizer")
        for kind in _with_subclasses(base):
            if "step" in vars(kind):
                self._replace(kind, "step", self._optimizer_step)
            if "step_with_ready_grads" in vars(kind):
                self._replace(kind, "step_with_ready_grads", self._update)

    def _schedule(self, table: ScheduleTable, original: Any) -> Any:
        steps = self.steps

        def schedule(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("forward_only"):
                steps.aside("eval")
                return original(*args, **kwargs)
            steps.begin(
                expected_transfers(steps, table, kwargs), shares_embedding(kwargs.get("model"))
            )
            with with_timers(steps, config_of(kwargs.get("model"))):
                answer = original(*args, **kwargs)
            steps.scheduled()
            return answer

        return schedule

    def _forward_step(self, original: Any) -> Any:
        steps = self.steps
        microbatch_of = argument(original, "current_microbatch")
        chunk_of = argument(original, "vp_stage")

        def forward_step(*args: Any, **kwargs: Any) -> Any:
            if not steps.on:
                return original(*args, **kwargs)
            ids = steps.forward_ids(microbatch_of(args, kwargs), chunk_of(args, kwargs))
            begun = steps.forward_begins(ids)
            answer = original(*args, **kwargs)
            steps.forward_ended(begun, ids, answer)
            return answer

        return forward_step

    def _backward_step(self, original: Any) -> Any:
        steps = self.steps
        outputs_of = argument(original, "output_tensor")

        def backward_step(*args: Any, **kwargs: Any) -> Any:
            if not steps.on:
                return original(*args, **kwargs)
            begun = steps.backward_begins(outputs_of(args, kwargs))
            gradients = original(*args, **kwargs)
            steps.backward_ended(begun, gradients)
            return gradients

        return backward_step

    def _communicate(self, original: Any) -> Any:
        steps = self.steps
        arguments = {name: argument(original, name) for name in TRANSFERS}

        def communicate(*args: Any, **kwargs: Any) -> Any:
            if not steps.on:
                return original(*args, **kwargs)
            asked = {name: of(args, kwargs) for name, of in arguments.items()}
            transfers = transfers_of(steps, asked)
            answer = original(*args, **kwargs)
            return answer if transfers is None else transfers.end(answer)

        return communicate

    def _optimizer_step(self, original: Any) -> Any:
        steps = self.steps

        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_stepping:  # a chained optimizer calls its parts
                return original(optimizer, *args, **kwargs)
            self._is_stepping = True
            steps.optimizer_begins(synchronises(optimizer))
            try:
                answer = original(optimizer, *args, **kwargs)
            except BaseException:
                steps.broken()
                raise
            finally:
                self._is_stepping = False
            steps.optimizer_ended()
            return answer

        return step

    def _update(self, original: Any) -> Any:
        steps = self.steps

        def step_with_ready_grads(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_stepping:
                steps.update_begins()
            with with_timers(steps, config_of(optimizer)):
                return original(optimizer, *args, **kwargs)

        return step_with_ready_grads


def _with_subclasses(kind: Any) -> list[Any]:
    found = [kind]
    for each in kind.__subclasses__():
        found += [sub for sub in _with_subclasses(each) if sub not in found]
    return found
