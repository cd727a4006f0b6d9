"""Steps and topology of a trainer that reports by callbacks (Hugging Face, Lightning).

Of ranks that compute the same data, only one records.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..recorder import NULL, never_raises
from ..run_keys import run_key
from ..startup import start as start_recorder
from ..topology import Topology, from_device_mesh, from_torch, invalid_topology
from .computing import CurrentComputation, current_computation

# Names that the dimensions of a mesh have in accelerate and in Lightning, outermost first.
_DATA_AXES = ("dp_replicate", "dp_shard", "data_parallel")
_TENSOR_AXES = ("tp", "tensor_parallel")
_SAME_DATA = ("tp_size", "cp_size", "sp_size")


def safe_topology(find: Callable[[], Topology]) -> Topology:
    """The result of `find`. Never raises: an exception on one rank would block all others."""
    try:
        return find()
    except Exception as error:
        return invalid_topology(
            f"the trainer does not give this rank's position, give topology=: {error!r}"
        )


def hugging_face_topology(trainer: Any, args: Any, model: Any) -> Topology:
    """Topology of a Trainer's process; the trainer may be None."""
    accelerator = getattr(trainer, "accelerator", None)
    config = getattr(accelerator, "parallelism_config", None) or getattr(
        args, "parallelism_config", None
    )
    sizes = [getattr(config, name, None) for name in _SAME_DATA]
    if not any(_is_several(size) for size in (*sizes, getattr(model, "tp_size", None))):
        return from_torch()
    mesh = getattr(config, "device_mesh", None)
    if mesh is None:
        return invalid_topology("no mesh tells which ranks compute the same data: give topology=")
    return _mesh_topology(mesh)


def lightning_topology(strategy: Any) -> Topology:
    """Topology under a Lightning strategy; only ModelParallelStrategy has a mesh."""
    mesh = getattr(strategy, "device_mesh", None)
    return from_torch() if mesh is None else _mesh_topology(mesh)


def _mesh_topology(mesh: Any) -> Topology:
    names = mesh.mesh_dim_names or ()
    tensor = next((name for name in _TENSOR_AXES if name in names), _TENSOR_AXES[0])
    return from_device_mesh(mesh, dp=[name for name in _DATA_AXES if name in names], tp=tensor)


def _is_several(size: Any) -> bool:
    return isinstance(size, int) and size > 1


log = logging.getLogger("paceline_client")

# From a batch to attributes of `Recorder.op`, for example {"tokens": batch["input_ids"].numel()}.
Work = Callable[[Any], Mapping[str, int]]

_trainings = itertools.count(1)  # in this process; each one's steps begin at 0

# Steps in a row that are excluded from the analysis, after which there is a warning.
MAX_UNMARKED_STEPS = 10


class StepScopedRecorder:
    """A recorder for hooks that may run at any time; it records only inside training steps."""

    def __init__(self) -> None:
        self.recorder: Any = NULL
        self.is_open = False

    @property
    def is_recording(self) -> bool:
        """Whether the current work is recorded."""
        return self.is_open

    def begin(self, optype: str, **about: Any) -> Any:
        """As the recorder's own."""
        return self.recorder.begin(optype, **about) if self.is_open else None

    def begin_wait(self) -> Any:
        """As the recorder's own."""
        return self.recorder.begin_wait() if self.is_open else None

    def end(self, begun: Any, **attributes: Any) -> None:
        """As the recorder's own."""
        self.recorder.end(begun, **attributes)


class TrainerSteps:
    """A trainer's steps, each with its wait for data, computations and optimizer."""

    def __init__(
        self,
        recorder: Any = None,
        *,
        topology: Topology | None = None,
        work: Work | None = None,
        **start: Any,
    ) -> None:
        self.in_step = StepScopedRecorder()
        self.computing: CurrentComputation = current_computation(self.in_step)
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
        """Pickled when a trainer starts its processes itself."""
        options = {"topology": self._topology, "work": self.work, **self._start}
        return functools.partial(TrainerSteps, **options), ()

    @never_raises
    def train_begins(self, framework: str, find_place: Callable[[], Topology] = from_torch) -> None:
        """Training begins, with a new recorder unless one was given."""
        self.train_ended()  # an earlier attempt may have failed, as for lack of memory
        self._kind, self._num_marked = "first", 0
        if self._given is None:
            place = self._topology or safe_topology(find_place)
            key = _key(next(_trainings), self._start)
            options = {"framework": framework, **self._start, "run_key": key}
            self.in_step.recorder = start_recorder(topology=place, **options)
        else:
            self.in_step.recorder = self._given
        self.idle()

    @never_raises
    def watch_once(self, module: Any, watch: Callable[[Any], Any]) -> None:
        """Put hooks on each module only once."""
        if module is not None and module not in self._watched:
            self._watched.add(module)
            watch(module)

    @never_raises
    def idle(self) -> None:
        """The trainer may wait for data from now on."""
        self._idle_ns = self.in_step.recorder.now_ns()

    def aside(self, kind: str) -> None:
        """An evaluation or a checkpoint ran; it determines the next step's kind."""
        if self._kind != "first":
            self._kind = kind
        self.idle()

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self._step is not None

    @never_raises
    def begin(self, number: int) -> None:
        """A step begins; its data has arrived."""
        self.broken()
        recorder = self.in_step.recorder
        self._step = recorder.step(number, kind=self._kind)
        self._step.__enter__()
        self._number = number
        self.in_step.is_open = bool(recorder.is_recording)
        self._count_marked()
        self.waited()

    @never_raises
    def waited(self) -> None:
        """Record the wait for data, which has arrived."""
        if self.in_step.is_open:
            recorder = self.in_step.recorder
            waited_ns = max(0, recorder.now_ns() - self._idle_ns)
            recorder.record("data-wait", self._number, self._idle_ns, waited_ns)

    @never_raises
    def end(self) -> None:
        """The step is done."""
        self._close()
        step, self._step = self._step, None
        if step is not None:
            self._kind = "train"
            step.__exit__(None, None, None)
        self.idle()

    @never_raises
    def broken(self) -> None:
        """The open step, if any, was not finished."""
        self._close()
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(RuntimeError, RuntimeError("the step was broken off"), None)

    @never_raises
    def optimizer_begins(self) -> None:
        """The gradients are ready; the optimizer begins."""
        self.computing.end()
        self._optimizer = self.in_step.begin("optimizer")

    @never_raises
    def optimizer_ended(self) -> None:
        """The parameters have changed."""
        begun, self._optimizer = self._optimizer, None
        self.in_step.end(begun)

    @never_raises
    def train_ended(self) -> None:
        """Close the recorder, unless it was given."""
        self.broken()
        if self._given is None:
            recorder, self.in_step.recorder = self.in_step.recorder, NULL
            recorder.close()

    def attributes_of(self, batch: Any) -> Mapping[str, int]:
        """Attributes of a batch from its shape, including padding; does not wait for the GPU."""
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
        """Warn if too many steps in a row are excluded from the analysis."""
        is_marked = self._kind in ("eval", "checkpoint")
        self._num_marked = self._num_marked + 1 if is_marked else 0
        if self._num_marked == MAX_UNMARKED_STEPS and not self._warned:
            self._warned = True
            log.warning(
                "paceline: %d steps in a row came after an evaluation or a checkpoint each, and "
                "such steps are left out of the analysis: evaluate or save less often",
                MAX_UNMARKED_STEPS,
            )

    def _close(self) -> None:
        self.computing.end()
        self.optimizer_ended()
        self.in_step.is_open = False


def reduces_gradients(model: Any) -> bool:
    """Whether a model is under DDP, and in a group of more than itself.

    By name: FSDP1 has hooks of the same name with other arguments.
    """
    is_ddp = any(kind.__name__ == "DistributedDataParallel" for kind in type(model).__mro__)
    return is_ddp and model.process_group.size() > 1


def _key(training: int, start: Mapping[str, Any]) -> str | None:
    """The run key of this training; trainings of a process get distinct ones."""
    given = start.get("run_key")
    is_spooled = start.get("spool_dir") is not None
    key = run_key(given=None if given is None else str(given), is_spooled=is_spooled)
    return key if key is None or training == 1 else f"{key}-{training}"
