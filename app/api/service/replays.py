"""Replays of closed windows, and single steps of them: built on demand and cached.

`window_key` has the newest revision of a closed window. `ResultCache` has the decoded results of
windows, which all charts of a page share.
"""

import threading
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from app.api.http.caching import ComputeCache
from app.engine.questions.answer import Questions
from app.engine.replays import WindowReplay, prepare
from app.engine.timeline.selection import slowest_step
from app.engine.timeline.step_view import StepView, step_view
from app.errors import Conflict, OperationsDamaged
from app.ingest.assembly.int_packing import DamagedRows
from app.ingest.assembly.window_codec import unpack_window
from app.ingest.assembly.windows import partial_steps
from app.result.window_result import RecordedPart, WindowResult
from app.store import hosts, jobs, joint_windows, windows
from app.store.database import Connection, Store
from app.store.joint_windows import ARRAYS_PER_RANK, ARRAYS_PER_WORKER
from app.store.objects import moves
from app.store.objects.bucket import Bucket
from app.store.windows import WindowSummary
from app.trace.job import Job, job_of
from app.trace.window import SkippedStep, Window
from app.work_budget import hold

# Numbers in Python take 32 bytes each: about 64 MB in all.
MAX_NUMBERS_CACHED = 2_000_000
# Of a result without its arrays.
_MIN_NUMBERS = 2_000
# The charts of a page are asked for together, and the next revision has another key. Without this
# the cache would grow for hours, mostly by revisions that nobody asks for any more.
IDLE_S = 120.0


class ResultCache:
    """Results by job, window and revision; thread-safe."""

    def __init__(self) -> None:
        self._cache = ComputeCache[Hashable, WindowResult](
            max_size=MAX_NUMBERS_CACHED, size_of=num_numbers, idle_s=IDLE_S
        )

    def get(
        self, store: Store, job_id: str, window_id: str, *, per_step: bool = False
    ) -> WindowResult:
        """One window's result; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            window = windows.summary(conn, job_id, window_id)

        def read() -> WindowResult:
            with store.read() as conn:
                return windows.get(conn, job_id, window.window_id, per_step=per_step)

        return self.get_or_compute((job_id, window.window_id, window.revision, per_step), read)

    def recent(self, store: Store, job_id: str, *, per_step: bool = False) -> WindowResult:
        """What the job is judged by now; raises as `app.store.windows.get` does."""
        with store.read() as conn:
            judged = joint_windows.judged_windows(conn, job_id)

        def read() -> WindowResult:
            with store.read() as conn:
                return joint_windows.read_judged(conn, job_id, judged, per_step=per_step)

        return self.get_or_compute((job_id, "recent", judged.key, per_step), read)

    def get_or_compute(self, key: Hashable, compute: Callable[[], WindowResult]) -> WindowResult:
        """The result of this key; concurrent callers share one computation."""
        return self._cache.get(key, compute)


def epoch_of(result: WindowResult) -> int:
    """The run that a stored result is of; only a profile's, which is not stored, has none."""
    return result.window.epoch or 0


def num_numbers(result: WindowResult) -> int:
    """Approximate count of numbers in a result."""
    num_workers = result.job.dp_size * result.job.pp_size
    num_steps = len(result.steps)
    by_step = num_steps * num_workers if result.per_step else 0
    by_rank = 0
    if arrivals := result.arrivals:
        of_rank = ARRAYS_PER_RANK + (num_steps if arrivals.per_step else 0)
        by_rank = len(arrivals.rank) * of_rank
    return _MIN_NUMBERS + ARRAYS_PER_WORKER * num_workers + 8 * num_steps + by_step + by_rank


_KEPT_ON_CLOSE = "operations are kept when a window closes"
_MAX_WINDOWS_SEARCHED = 100  # newest windows that are searched for one with steps


class WindowKey(NamedTuple):
    """One revision of one window of a job."""

    job_id: str
    window_id: str
    revision: int


def window_key(conn: Connection, job_id: str, window_id: str) -> WindowKey:
    """Key of a closed window's newest revision; `latest` is the current run's newest window.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
        Conflict: the window is still open, or no closed one of the run can be replayed.
    """
    if window_id == "latest":
        window = _latest_closed(conn, job_id)
    else:
        window = windows.summary(conn, job_id, window_id)
        if window.state == "open":
            raise _still_open(conn, job_id, window)
    return WindowKey(job_id, window.window_id, window.revision)


def _latest_closed(conn: Connection, job_id: str) -> WindowSummary:
    """The newest closed window of the current run that has steps."""
    epoch, job = jobs.get(conn, job_id).epoch, job_of(job_id)
    closed = [summary for summary in _newest_closed(conn, job_id) if summary.epoch == epoch]
    if not closed:
        raise Conflict(f"job {job!r} has no closed window in its current run yet: {_KEPT_ON_CLOSE}")
    latest = _first_with_steps(closed)
    if latest is None:
        newest = closed[0].window_id
        why = _why_not_replayable(newest, windows.get(conn, job_id, newest))
        raise Conflict(
            f"job {job!r} has closed windows in its current run, but none to replay: {why}"
        )
    return latest


def _still_open(conn: Connection, job_id: str, window: WindowSummary) -> Conflict:
    closed = _newest_closed(conn, job_id)
    newest = _first_with_steps(closed)
    if newest is not None:
        instead = f"the newest closed one is {newest.window_id}"
    else:
        instead = "none that has closed can be replayed" if closed else "none has closed yet"
    return Conflict(f"window {window.window_id} is still open, and {_KEPT_ON_CLOSE}; {instead}")


def _newest_closed(conn: Connection, job_id: str) -> list[WindowSummary]:
    newest, _ = windows.page(conn, job_id, limit=_MAX_WINDOWS_SEARCHED)
    return [summary for summary in newest if summary.state != "open"]


def _first_with_steps(summaries: list[WindowSummary]) -> WindowSummary | None:
    return next((summary for summary in summaries if summary.num_steps), None)


def _why_not_replayable(window_id: str, result: WindowResult) -> str:
    """Text that a window cannot be replayed, with the reason."""
    skipped = result.skipped_steps
    reason = f": step {skipped[0].step}: {skipped[0].reason}" if skipped else ""
    return f"window {window_id} has no step whose operations can be replayed{reason}"


class _PackedWindow(NamedTuple):
    """A window as it is stored; `blob` has its operations, in a fraction of their memory."""

    key: WindowKey
    result: WindowResult
    blob: bytes
    job: Job
    names: dict[hosts.WorkerKey, str]


def _fetch(store: Store, key: WindowKey, bucket: Bucket | None) -> _PackedWindow:
    with store.snapshot() as conn:
        result = windows.get(conn, key.job_id, key.window_id)
        stored = moves.find(conn, key.job_id, key.window_id)
        epoch = epoch_of(result)
        registration = jobs.registration(conn, key.job_id, epoch)
        names = hosts.load(conn, key.job_id, epoch)
    if not result.steps:
        raise Conflict(_why_not_replayable(key.window_id, result))
    blob = moves.fetch(bucket, stored)
    if blob is None:
        raise Conflict(
            f"the operations of window {key.window_id} have been deleted (PACELINE_KEEP_RAW_DAYS, "
            "or the project's setting), or were not stored since the disk was nearly full: only "
            "its result is left"
        )
    return _PackedWindow(key, result, blob, registration.job, names)


def _unpacked(packed: _PackedWindow) -> Window:
    result, window_id = packed.result, packed.key.window_id
    try:
        stored = unpack_window(packed.blob)
    except DamagedRows as error:
        raise OperationsDamaged(
            f"the operations of window {window_id} cannot be read, only its result: {error}"
        ) from error
    # Of windows that became one, only the operations of the one in `recorded` are stored.
    thinned = result.thinned
    recorded = result if thinned is None or thinned.recorded is None else thinned.recorded
    header = recorded.window
    lacking = _completed_steps(recorded)
    completed = {skipped.step for skipped in lacking}
    steps = tuple(step for step in recorded.steps if step not in completed)
    if not np.isin(steps, stored.ops.step).all():
        raise OperationsDamaged(
            f"the operations of window {window_id} are of other steps: only its result is left"
        )
    left_out = [SkippedStep(skipped.step, skipped.reason) for skipped in recorded.skipped_steps]
    epoch, first_step = (int(number) for number in str(header.id).split("-"))
    origin_ns, groups = stored.ops.origins_ns(steps), stored.groups
    return Window(
        job=packed.job,
        epoch=epoch,
        first_step=first_step,
        steps=steps,
        trace=stored.ops.trace(steps),
        skipped=tuple(sorted([*left_out, *lacking], key=lambda skipped: skipped.step)),
        state=header.state,
        revision=header.revision or 1,
        hosts=packed.names,
        origin_ns=origin_ns,
        collectives=None if groups is None else groups.collectives(steps, origin_ns),
        places=_places(recorded),
        partial=partial_steps(stored.ops, groups, steps, lacking) if lacking else None,
    )


def _completed_steps(recorded: WindowResult | RecordedPart) -> tuple[SkippedStep, ...]:
    """The steps that were analysed although they lack operations, as they were recorded."""
    completed = recorded.imputed.steps if recorded.imputed else ()
    return tuple(SkippedStep(step.step, step.reason, step.missing) for step in completed)


def _places(recorded: WindowResult | RecordedPart) -> dict[int, tuple[int, int]]:
    """(dp rank, stage) of the ranks that are missing."""
    workers = recorded.imputed.workers if recorded.imputed else ()
    return {worker.rank: (worker.dp_rank, worker.stage) for worker in workers}


# One window of the largest supported job (12.2 M operations), or hundreds of ordinary ones. With
# less, that window would be rebuilt for every question.
MAX_REPLAY_BYTES = 1 << 30
# A trace's columns, three matrices of times, and the graph.
BYTES_PER_OP = 80


class ReplayCache:
    """LRU cache of the replays of stored windows; thread-safe."""

    def __init__(
        self, store: Store, bucket: Bucket | None = None, *, max_bytes: int = MAX_REPLAY_BYTES
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._cache = ComputeCache[WindowKey, Questions](max_size=max_bytes, size_of=_size_bytes)
        # One build at a time: a large window takes gigabytes meanwhile.
        self._building = threading.Lock()

    def get(self, job_id: str, window_id: str) -> WindowReplay:
        """The replay of a closed window; `latest` is the newest closed one of the current run.

        Raises:
            JobNotFound: the job never registered.
            WindowNotFound: it has no such window.
            Conflict: the window is still open, or none of its steps can be replayed.
        """
        return self.questions(job_id, window_id).replay

    def questions(self, job_id: str, window_id: str) -> Questions:
        """The replay with the results that its answers share; raises as `get` does."""
        with self._store.read() as conn:
            key = window_key(conn, job_id, window_id)
        return self._cache.get(key, lambda: self._build(key))

    def _build(self, key: WindowKey) -> Questions:
        packed = _fetch(self._store, key, self._bucket)  # a bucket may take its time
        with hold(self._building):
            return Questions(prepare(_unpacked(packed)))

    def load(self, key: WindowKey) -> Window:
        """The window as it was analysed, with its operations; not kept here.

        Times of operations are as they are stored, rounded.

        Raises:
            Conflict: no step can be replayed, or the operations have been deleted.
            ObjectStorageUnavailable: the operations are in a bucket that does not answer.
            OperationsDamaged: the stored bytes are not those that were written.
        """
        return _unpacked(_fetch(self._store, key, self._bucket))


def _size_bytes(questions: Questions) -> int:
    return questions.replay.window.trace.num_ops * BYTES_PER_OP


# One step of the largest supported job (16,384 workers), or hundreds of others.
MAX_STEP_VIEW_BYTES = 256 << 20

_StepKey = tuple[str, str, int, int]


class StepViewCache:
    """LRU cache of steps by job, window, revision and number; thread-safe."""

    def __init__(self, replays: ReplayCache, *, max_bytes: int = MAX_STEP_VIEW_BYTES) -> None:
        self._replays = replays
        self._cache = ComputeCache[_StepKey, StepView](
            max_size=max_bytes, size_of=lambda view: view.size_bytes
        )
        self._playing = threading.Lock()

    def get(
        self, job_id: str, window_id: str, step: int | None, dp_rank: int | None
    ) -> tuple[WindowReplay, StepView]:
        """A closed window, and one of its steps as one replica ran it.

        Defaults: the slowest step, and the replica that delayed it longest.

        Raises:
            JobNotFound, WindowNotFound: there is no such job or window.
            Conflict: the window is open, or its operations have been deleted.
            InvalidRequest: it has no such step or dp rank.
        """
        replay = self._replays.get(job_id, window_id)
        shown = slowest_step(replay) if step is None else step
        key = (job_id, replay.window.id, replay.window.revision, shown)
        view = self._cache.get(key, lambda: self._play(replay, shown))
        return replay, view.of(dp_rank)

    def _play(self, replay: WindowReplay, step: int) -> StepView:
        with hold(self._playing):
            return step_view(replay, step)
