"""A simulated job as the consumer sees it: batches arrive, windows close, and each is observed.

Batches come in the order of their arrival, the consumer's own assembler closes the windows, and
each is observed with the job's history.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from app.alerts.facts import WindowFacts
from app.diagnosis.diagnose import diagnose
from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.engine.report import analyse_replay, report_result
from app.errors import InvalidTrace
from app.ingest.assembly.assembler import RunAssembler, WindowRules
from app.ingest.assembly.window_codec import PackedWindow
from app.ingest.assembly.windows import WindowRevision
from app.ingest.batch import OpBatch
from app.monitor import observe
from app.result.window_result import WindowResult
from app.synth.job import SimulatedRun
from app.synth.record import RecordedSteps
from app.trace.job import Job
from app.trace.window import Ints, OpColumns, Window

STEPS_PER_BATCH = 4
_NS = 1e-9
DEADLINE_S = 30.0  # what the consumer waits by default


@dataclass(frozen=True, slots=True)
class ArrivalHabits:
    """How a job's workers send: `late_worker` (dp rank, stage) by `late_s` later than all others.

    `sends_hosts` says whether they name their hosts.
    """

    sends_hosts: bool = True
    late_worker: tuple[int, int] | None = None
    late_s: float = 0.0


def arrivals(
    record: RecordedSteps, habits: ArrivalHabits, epoch: int
) -> list[tuple[float, OpBatch]]:
    """Every batch with the second in which it arrives, first to last."""
    began_ns = int(record.start_ns.min())
    found = []
    for rows in _by_worker(record):
        worker = int(record.dp_rank[rows[0]]), int(record.stage[rows[0]])
        late_s = habits.late_s if worker == habits.late_worker else 0.0
        host = record.hosts.get(worker) if habits.sends_hosts else None
        for number, part in enumerate(_in_batches(record.step[rows])):
            batch = replace(_batch(record, rows[part], worker, host, number), epoch=epoch)
            ends_ns = int((batch.columns.start_ns + batch.columns.duration_ns).max())
            found.append(((ends_ns - began_ns) * _NS + late_s, batch))
    return sorted(found, key=lambda each: (each[0], each[1].rank, each[1].batch_seq))


def _by_worker(record: RecordedSteps) -> Iterator[Ints]:
    """Rows of each worker that sent anything, by step and start."""
    worker = record.dp_rank.astype(np.int64) * record.job.parallelism.pp_size + record.stage
    rows = np.lexsort((record.start_ns, record.step, worker))
    ends = np.flatnonzero(np.diff(worker[rows])) + 1
    yield from np.split(rows, ends)


def _in_batches(step: Ints) -> Iterator[slice]:
    """Of one worker's rows, some steps at a time."""
    firsts = np.flatnonzero(np.diff(step, prepend=-1))
    for first, end in pairwise([*firsts[::STEPS_PER_BATCH].tolist(), step.size]):
        yield slice(first, end)


def _batch(
    record: RecordedSteps, rows: Ints, worker: tuple[int, int], host: str | None, number: int
) -> OpBatch:
    columns = _columns(record, rows)
    steps, num_ops = np.unique(columns.step, return_counts=True)
    done = tuple(zip(steps.tolist(), num_ops.tolist(), strict=True))
    return OpBatch(1, int(record.rank[rows[0]]), *worker, host, number, done, columns)


def _columns(record: RecordedSteps, rows: Ints) -> OpColumns:
    arrays: dict[str, Any] = {}
    for name in (each.name for each in fields(OpColumns)):
        column = getattr(record, name)
        arrays[name] = None if column is None else column[rows]
    arrays["optype"] = record.optype[rows].astype(np.int16)
    return OpColumns(**arrays)


def closed_windows(
    job: Job, epoch: int, window_steps: int, arriving: Iterable[tuple[float, OpBatch]]
) -> Iterator[Window]:
    """Every window of the run when it closes, and again at each revision."""
    stored: dict[int, PackedWindow] = {}
    rules = WindowRules(window_steps, DEADLINE_S)
    run = RunAssembler(job, epoch, rules, stored.__getitem__)
    for change in _changes(run, arriving):
        if change.ops is not None:
            stored[change.window.first_step] = change.ops
            yield change.window


def _changes(
    run: RunAssembler, arriving: Iterable[tuple[float, OpBatch]]
) -> Iterator[WindowRevision]:
    now_s = 0.0
    for now_s, batch in arriving:
        due_s = run.next_deadline_s()
        if due_s is not None and due_s < now_s:  # the consumer's clock does not wait for batches
            yield from run.settle(now_s, tells_open=False)
        run.add(batch, now_s)
        yield from run.settle(now_s, tells_open=False)
    yield from run.finish(now_s, "complete")


@dataclass(frozen=True, slots=True)
class ObservedWindow:
    """One closed window and its result, with the history that it was seen with.

    `facts` is what alert rules see of it; `has_failed` says that it has whole steps, which could
    not be analysed.
    """

    window: Window
    result: WindowResult
    facts: WindowFacts
    history: History
    has_failed: bool

    @property
    def position(self) -> tuple[int, int, int]:
        """Sort key: later windows and revisions are larger."""
        return self.window.epoch, self.window.first_step, self.window.revision

    @property
    def num_steps(self) -> int:
        """All of its steps, the skipped ones too."""
        return len(self.window.steps) + len(self.window.skipped)

    @property
    def all_steps(self) -> list[int]:
        """Their numbers, ascending."""
        return sorted([*self.window.steps, *(each.step for each in self.window.skipped)])


def observed_run(
    attempt: SimulatedRun, window_steps: int, habits: ArrivalHabits
) -> list[ObservedWindow]:
    """All windows of one run of a job as they closed, and again when they were revised."""
    record = attempt.job.record(attempt.steps)
    arriving = arrivals(record, habits, attempt.epoch)
    return list(observed_windows(record.job, attempt.epoch, window_steps, arriving))


def observed_windows(
    job: Job, epoch: int, window_steps: int, arriving: Iterable[tuple[float, OpBatch]]
) -> Iterator[ObservedWindow]:
    """The same of batches that arrive at these seconds; each is taken when it is asked for."""
    history = History()
    for window in closed_windows(job, epoch, window_steps, arriving):
        observation = observe(window, history)
        has_failed = bool(window.steps) and observation.report is None
        yield ObservedWindow(window, observation.result, observation.facts, history, has_failed)
        if observation.recent is not None:
            history = history.extended(observation.recent)


def judged_window(windows: Sequence[ObservedWindow], window_steps: int) -> ObservedWindow:
    """The last revision of the last full window, or of the last window where none is full."""
    full = [observed for observed in windows if observed.num_steps >= window_steps]
    return max(full or windows, key=lambda observed: observed.position)


def analysis_seconds(observed: ObservedWindow) -> tuple[float, float]:
    """Seconds of analysing the window, and of diagnosing it after that."""
    if not observed.window.steps:
        return 0.0, 0.0
    began_s = time.perf_counter()
    try:
        replay = prepare(observed.window)
        report = analyse_replay(replay)
        result = report_result(report)
        analysed_s = time.perf_counter()
        diagnose(replay, report, observed.history).added_to(result)
    except InvalidTrace:
        return 0.0, 0.0
    return analysed_s - began_s, time.perf_counter() - analysed_s
