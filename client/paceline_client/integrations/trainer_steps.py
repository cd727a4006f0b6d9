"""The steps of a trainer that tells of them by callbacks, and what of it is recorded."""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ..null import NULL
from ..run_keys import run_key
from ..starting import start as start_recorder
from ..topology import Topology, from_torch
from .computing import Computing, computing
from .trainer_place import placed

log = logging.getLogger("paceline_client")
CallT = TypeVar("CallT", bound=Callable[..., Any])

# Of a batch: what `Recorder.op` takes, for example {"tokens": batch["input_ids"].numel()}.
Work = Callable[[Any], Mapping[str, int]]

_trainings = itertools.count(1)  # of this process: the second one's steps begin at 0 again

# So many in a row that are left out of the analysis are no accident.
MANY_MARKED = 10


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


class InStep:
    """A recorder for hooks that run at any time: outside of a training step they record nothing."""

    def __init__(self) -> None:
        self.recorder: Any = NULL
        self.is_open = False

    @property
    def is_recording(self) -> bool:
        """Whether what runs now is recorded."""
        return self.is_open

    def begin(self, optype: str, **about: Any) -> Any:
        """As the recorder's own."""
        return self.recorder.begin(optype, **about) if self.is_open else None

    def begin_wait(self) -> Any:
        """As the recorder's own."""
        return self.recorder.begin_wait() if self.is_open else None

    def end(self, begun: Any, **told: Any) -> None:
        """As the recorder's own."""
        self.recorder.end(begun, **told)


class TrainerSteps:
    """One trainer's steps: each with its wait for data, its computations and its optimizer."""

    def __init__(
        self,
        recorder: Any = None,
        *,
        topology: Topology | None = None,
        work: Work | None = None,
        **start: Any,
    ) -> None:
        self.in_step = InStep()
        self.computing: Computing = computing(self.in_step)
        self.work = work
        self._given = recorder
        self._topology = topology
        self._start = start
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()
        self._step: Any = None
        self._number = 0
        self._kind = "first"
        self._num_marked = 0  # in a row
        self._warned = False
        self._optimizer: Any = None
        self._idle_ns = 0  # since when the trainer may be waiting for data

    def __reduce__(self) -> Any:
        """A trainer that starts its processes itself hands its callbacks to them."""
        options = {"topology": self._topology, "work": self.work, **self._start}
        return functools.partial(TrainerSteps, **options), ()

    @harmless
    def train_begins(self, framework: str, find_place: Callable[[], Topology] = from_torch) -> None:
        """Training begins: with a recorder of its own, unless one is given."""
        self.train_ended()  # one that broke off, as for want of memory, before it is tried anew
        self._kind, self._num_marked = "first", 0
        if self._given is None:
            place = self._topology or placed(find_place)
            key = _key(next(_trainings), self._start)
            options = {"framework": framework, **self._start, "run_key": key}
            self.in_step.recorder = start_recorder(topology=place, **options)
        else:
            self.in_step.recorder = self._given
        self.idle()

    @harmless
    def watch_once(self, module: Any, watch: Callable[[Any], Any]) -> None:
        """Hooks are put on each module once, however often it is trained."""
        if module is not None and module not in self._watched:
            self._watched.add(module)
            watch(module)

    @harmless
    def idle(self) -> None:
        """From now on the trainer waits for its next data."""
        self._idle_ns = self.in_step.recorder.now_ns()

    def aside(self, kind: str) -> None:
        """An evaluation or a checkpoint ran between steps: the next one is called by it."""
        if self._kind != "first":
            self._kind = kind
        self.idle()

    @property
    def is_open(self) -> bool:
        """Whether a step is going on."""
        return self._step is not None

    @harmless
    def begin(self, number: int) -> None:
        """A step begins, with its data there."""
        self.broken()
        recorder = self.in_step.recorder
        self._step = recorder.step(number, kind=self._kind)
        self._step.__enter__()
        self._number = number
        self.in_step.is_open = bool(recorder.is_recording)
        self._count_marked()
        self.waited()

    @harmless
    def waited(self) -> None:
        """The data that was waited for is there."""
        if self.in_step.is_open:
            recorder = self.in_step.recorder
            waited_ns = max(0, recorder.now_ns() - self._idle_ns)
            recorder.record("data-wait", self._number, self._idle_ns, waited_ns)

    @harmless
    def end(self) -> None:
        """The step is done."""
        self._close()
        step, self._step = self._step, None
        if step is not None:
            self._kind = "train"
            step.__exit__(None, None, None)
        self.idle()

    @harmless
    def broken(self) -> None:
        """Whatever step is open was not finished."""
        self._close()
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(RuntimeError, RuntimeError("the step was broken off"), None)

    @harmless
    def optimizer_begins(self) -> None:
        """The gradients are there, and the parameters change."""
        self.computing.end()
        self._optimizer = self.in_step.begin("optimizer")

    @harmless
    def optimizer_ended(self) -> None:
        """The parameters have changed."""
        begun, self._optimizer = self._optimizer, None
        self.in_step.end(begun)

    @harmless
    def train_ended(self) -> None:
        """Deliver what is left, if the recorder is ours."""
        self.broken()
        if self._given is None:
            recorder, self.in_step.recorder = self.in_step.recorder, NULL
            recorder.close()

    def told_of(self, batch: Any) -> Mapping[str, int]:
        """What is known of a batch without waiting for the GPU: its shape, padding included."""
        try:
            if self.work is not None:
                return self.work(batch)
            if not isinstance(batch, Mapping) or "input_ids" not in batch:
                return {}
            num_sequences, length = batch["input_ids"].shape
            return {"tokens": num_sequences * length, "seq_len_sq": num_sequences * length**2}
        except Exception:
            return {}

    def _count_marked(self) -> None:
        """Nothing else would say why there is nothing to see."""
        is_marked = self._kind in ("eval", "checkpoint")
        self._num_marked = self._num_marked + 1 if is_marked else 0
        if self._num_marked == MANY_MARKED and not self._warned:
            self._warned = True
            log.warning(
                "paceline: %d steps in a row came after an evaluation or a checkpoint each, and "
                "such steps are left out of the analysis: evaluate or save less often",
                MANY_MARKED,
            )

    def _close(self) -> None:
        self.computing.end()
        self.optimizer_ended()
        self.in_step.is_open = False


def reduces_gradients(model: Any) -> bool:
    """Whether a model is under DDP, and in a group of more than itself.

    By name: FSDP of the first kind has hooks of the same name that take other things.
    """
    is_ddp = any(kind.__name__ == "DistributedDataParallel" for kind in type(model).__mro__)
    return is_ddp and model.process_group.size() > 1


def _key(training: int, start: Mapping[str, Any]) -> str | None:
    """The run key of this training: all of a process's have the same one told, if any."""
    told = start.get("run_key")
    is_spooled = start.get("spool_dir") is not None
    key = run_key(told=None if told is None else str(told), is_spooled=is_spooled)
    return key if key is None or training == 1 else f"{key}-{training}"
