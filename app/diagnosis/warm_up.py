"""Compile every kernel of engine and diagnosis at install, or load it at the start of a process.

Compiled kernels are cached on disk.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from multiprocessing import get_context

import numpy as np

from app.diagnosis.diagnose import diagnose
from app.diagnosis.job_history import History
from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.change_points import level_changes
from app.diagnosis.statistics.ramps import rising_ramp
from app.engine.kernels import KERNELS, can_be_kept, num_missing, one_compiler
from app.engine.medians import medians_of_known
from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, FromWorker, Selection
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.engine.step_rows import canonical_order
from app.engine.timeline.step_run import RUN_KINDS, play_step
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Ints, Trace, Window

_ENGINE_OPS = ("forward-compute", "optimizer-clip-main-grad", "optimizer", "wait")
# A second each; the wait lies in the second half of the forward.
_ENGINE_START_S = np.array([0.0, 1.0, 2.0, 0.5])


@cache
def warm_up_engine() -> None:
    """Returns once every kernel can be called without being compiled."""
    replay = prepare(_engine_window())
    analyse_replay(replay)
    for kind in RUN_KINDS:
        play_step(replay.groups[0], 0, kind)
    edits = [
        Edit(Factor(2.0), Selection(dp_ranks=(1,))),
        Edit(FromWorker(0, 0), Selection(dp_ranks=(1,))),
    ]
    Questions(replay).answer(edits)
    one = np.zeros(1, np.int32)
    canonical_order(np.array([0, 1]), one, one)


def _engine_window() -> Window:
    """Two steps of two workers on two hosts, with some operations each."""
    step, dp_rank, op = (axis.ravel() for axis in np.mgrid[0:2, 0:2, 0 : len(_ENGINE_OPS)])
    zeros = np.zeros(step.size, np.int64)
    trace = Trace(
        step=step,
        dp_rank=dp_rank,
        stage=zeros,
        rank=dp_rank,
        optype=np.array([OP_CODES[name] for name in _ENGINE_OPS])[op],
        seq_id=zeros,
        mc=zeros - 1,
        mb_id=zeros - 1,
        start_s=_ENGINE_START_S[op],
        duration_s=np.ones(step.size),
    )
    job, hosts = Job.of("warm-up", Parallelism(2, 1)), {(0, 0): "a", (1, 0): "b"}
    return Window(job, 1, 0, (0, 1), trace, hosts=hosts, origin_ns=(0, 4 * 10**9))


_NUM_STEPS, _NUM_MICROBATCHES = 8, 4
# Operations of each stage for a micro-batch, one a second.
_ONE_BY_ONE = (
    ("forward-compute", "forward-send", "backward-recv", "backward-compute"),
    ("forward-recv", "forward-compute", "backward-compute", "backward-send"),
)
_AT_END = ("grads-reduce-scatter", "optimizer")


class WarmUp:
    """Kernels that are compiled by processes of their own, then loaded by a thread of this one.

    So no request and no turn of a consumer waits for the compiler's lock, and the compiler leaves
    the processor to them.
    """

    def __init__(self, stop: threading.Event) -> None:
        """`stop` ends it early, between two parts.

        The process waits for the thread at its end: a daemon thread would be ended inside of the
        compiler, whose C++ frames do not survive that and abort the whole process.
        """
        self._stop = stop
        self._compiled = threading.Event()
        threading.Thread(target=self._run, name="warm-up").start()

    def wait(self, within_s: float) -> None:
        """Returns once everything is compiled, cannot be, `stop` is set, or the time is over."""
        until_s = time.monotonic() + within_s
        while not (self._compiled.wait(_LOOK_EVERY_S) or self._stop.is_set()):
            if time.monotonic() > until_s:
                return

    def _run(self) -> None:
        try:
            # Without room for another process, this one compiles.
            with suppress(OSError):
                if not self._stop.is_set() and num_missing() and can_be_kept():
                    self._compile_apart()
        finally:
            self._compiled.set()
        warm_up(self._stop)

    def _compile_apart(self) -> None:
        command = [*_COMPILER, _BEHIND]
        with subprocess.Popen(command, process_group=0) as process:  # noqa: S603
            while process.poll() is None and not self._stop.wait(_LOOK_EVERY_S):
                pass
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # its second process, too


def compile_apart() -> None:
    """Compiles every kernel in processes of their own, at once; what they say is theirs."""
    subprocess.run(_COMPILER, check=False)  # noqa: S603


# -P: not an `app` of the folder that a command happens to run in.
_COMPILER = (sys.executable, "-P", "-m", "app.diagnosis.warm_up")
_LOOK_EVERY_S = 0.1
_NICE = 10  # of compilers: a page is not to wait for them


def warm_up(stop: threading.Event | None = None) -> None:
    """Returns once every kernel can be called without being compiled, or `stop` is set."""
    for part in (warm_up_engine, _warm_up_diagnosis, _warm_up_change_points):
        if stop is not None and stop.is_set():
            return
        part()


@cache
def _warm_up_diagnosis() -> None:
    replay = prepare(_window())
    diagnose(replay, analyse_replay(replay), History())


@cache
def _warm_up_change_points() -> None:
    rising = 1 + np.clip(np.arange(40) / 20 - 0.5, 0.0, 1.0)
    level_changes(rising)
    rising_ramp(rising, change_points.LIMITS.usual)


def _window() -> Window:
    """Steps of two dp ranks and two stages; one worker is slow in the second half."""
    rows = np.array([(step, dp_rank, *op) for step in range(_NUM_STEPS) for dp_rank in range(2)
                     for op in _ops()], np.int64)  # fmt: skip
    step, dp_rank, stage, optype, seq_id, microbatch, start_s = rows.T
    zeros = np.zeros(step.size, np.int64)
    is_slow = (step >= _NUM_STEPS // 2) & (dp_rank == 1) & (stage == 0)
    trace = Trace(
        step=step,
        dp_rank=dp_rank,
        stage=stage,
        rank=2 * stage + dp_rank,
        optype=optype,
        seq_id=seq_id,
        mc=zeros,
        mb_id=microbatch,
        start_s=start_s.astype(np.float64),
        duration_s=np.where(is_slow, 0.9, 0.5),
        tokens=zeros + 1024,
        seq_len_sq=zeros + 1024**2 + _uneven(seq_id),
    )
    job, steps = Job.of("warm-up", Parallelism(2, 2)), tuple(range(_NUM_STEPS))
    return Window(job, 1, 0, steps, trace)


def _uneven(seq_id: Ints) -> Ints:
    return 4096 * (seq_id % 3)


def _ops() -> list[tuple[int, int, int, int, int]]:
    """Stage, code, seq_id, micro-batch and second of each operation of a replica."""
    ops = []
    for microbatch in range(_NUM_MICROBATCHES):
        for stage, names in enumerate(_ONE_BY_ONE):
            for at, name in enumerate(names):
                # The first stage's backward waits for the second's.
                second = 6 * microbatch + at + (stage if at < 2 or stage else 2)
                ops.append((stage, OP_CODES[name], microbatch, microbatch, second))
    for stage in range(len(_ONE_BY_ONE)):
        for at, name in enumerate(_AT_END):
            ops.append((stage, OP_CODES[name], 0, -1, 6 * _NUM_MICROBATCHES + at))
    return ops


def _compile_all() -> None:
    """Fill the cache on disk, in two processes: one for the engine, one for the diagnosis.

    Of several processes that begin at the same time one compiles, the others wait for it.
    """
    with one_compiler():
        if not num_missing():
            return
        # First what both need: each would write it into one index, and lose the other's part.
        medians_of_known(np.zeros((1, 1)))
        # A fork, as it has the compiler loaded; no thread runs yet.
        beside = get_context("fork").Process(target=_compile_diagnosis)
        beside.start()
        warm_up_engine()
        beside.join()
        if beside.exitcode:
            sys.exit(beside.exitcode)
        warm_up()
        if can_be_kept() and (lacking := num_missing()):
            sys.exit(f"{lacking} compiled kernels could not be kept: is the disk full?")


def _compile_diagnosis() -> None:
    """Compile what the diagnosis has; the engine runs as plain Python, but for shared medians."""
    functions = {id(compiled): compiled.py_func for compiled in KERNELS}
    engine = [module for name, module in sys.modules.items() if name.startswith("app.engine.")]
    for module in engine:
        for name, value in list(vars(module).items()):
            if id(value) in functions and value.__module__ != medians_of_known.__module__:
                setattr(module, name, functions[id(value)])
    _warm_up_change_points()
    _warm_up_diagnosis()


_BEHIND = "behind"

if __name__ == "__main__":
    if sys.argv[1:] == [_BEHIND]:
        os.nice(_NICE)
    _compile_all()
