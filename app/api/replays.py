"""Stored windows made ready to be replayed again: built when asked for, and kept for a while."""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from app.api.places import Places
from app.engine.questions.answer import Questions
from app.engine.replays import WindowReplay, prepare
from app.errors import Conflict
from app.ingest.trace_codec import unpack
from app.store import jobs, windows
from app.store.engine import Connection, Store
from app.store.windows import WindowSummary
from app.trace.job import Job
from app.trace.window import SkippedStep, Window

# One window of the largest job that we promise to take (12.2 M operations), or hundreds of
# ordinary ones: more would crowd out what else runs on the host, less would build that one anew
# for every question.
MAX_KEPT_BYTES = 1 << 30
# A trace's columns, three matrices of times, and the graph.
BYTES_PER_OP = 80

# Callers that wait for a window to be built hold a thread each, of the 40 that serve everybody.
MAX_WAITING = 8
# Work on a replay holds up to 100 MB of a large job, and a core or two.
MAX_AT_WORK = 4

_TOO_MANY = "too many others ask for recorded operations now: ask again in a moment"


class Key(NamedTuple):
    """One revision of one window of a job."""

    job_id: str
    window_id: str
    revision: int


class Replays:
    """Replays of stored windows, the last used ones kept; may be called from any thread.

    Take one of the places `at_work` for what is more than looking something up.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_kept_bytes: int = MAX_KEPT_BYTES,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[Key, Questions] = OrderedDict()
        self._keeping = threading.Lock()
        # One at a time, whoever asks: a large window takes gigabytes while it is built.
        self._building = threading.Lock()
        self._waiting = Places(max_waiting, _TOO_MANY)
        self.at_work = Places(MAX_AT_WORK, _TOO_MANY)

    def get(self, job_id: str, window_id: str) -> WindowReplay:
        """The replay of a closed window; `latest` is the newest closed one of the current run.

        Raises:
            JobNotFound: the job never registered.
            WindowNotFound: it has no such window.
            Conflict: the window is still open, or none of its steps can be replayed.
            Unavailable: too many wait for a window already.
        """
        return self.questions(job_id, window_id).replay

    def questions(self, job_id: str, window_id: str) -> Questions:
        """The same, with what its answers have in common; raises as `get` does."""
        with self._store.read() as conn:
            key = _closed(conn, job_id, window_id)
        return self._find(key) or self._built(key)

    def _built(self, key: Key) -> Questions:
        with self._waiting.taken(), self._building:
            # Whoever waited here with the same wish as the one before finds it done.
            found = self._find(key)
            if found is None:
                found = Questions(prepare(_load(self._store, key)))
                self._keep(key, found)
            return found

    def _find(self, key: Key) -> Questions | None:
        with self._keeping:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: Key, questions: Questions) -> None:
        with self._keeping:
            self._kept[key] = questions
            # The newest stays, however large: it is about to be used.
            while len(self._kept) > 1 and self._size_bytes() > self._max_kept_bytes:
                self._kept.popitem(last=False)

    def _size_bytes(self) -> int:
        num_ops = sum(each.replay.window.trace.num_ops for each in self._kept.values())
        return num_ops * BYTES_PER_OP


def _closed(conn: Connection, job_id: str, window_id: str) -> Key:
    """The newest revision of a closed window."""
    if window_id == "latest":
        found = _newest_closed(conn, job_id, jobs.get(conn, job_id).epoch)
        if found is None:
            raise Conflict(f"job {job_id!r} has no closed window in its current run yet: {_WAIT}")
    else:
        found = windows.summary(conn, job_id, window_id)
        if found.state == "open":
            raise _still_open(conn, job_id, found)
    return Key(job_id, found.window_id, found.revision)


_WAIT = "operations are kept when a window closes"
_LOOKED_THROUGH = 100  # windows of a run that fails for longer than that have nothing to replay


def _still_open(conn: Connection, job_id: str, found: WindowSummary) -> Conflict:
    closed = _newest_closed(conn, job_id)
    instead = f"the newest closed one is {closed.window_id}" if closed else "none has closed yet"
    return Conflict(f"window {found.window_id} is still open, and {_WAIT}; {instead}")


def _newest_closed(conn: Connection, job_id: str, epoch: int | None = None) -> WindowSummary | None:
    """The newest closed window that has steps, of one run or of all."""
    newest, _ = windows.page(conn, job_id, limit=_LOOKED_THROUGH)
    for summary in newest:
        is_wanted = epoch is None or summary.epoch == epoch
        if is_wanted and summary.state != "open" and summary.num_steps:
            return summary
    return None


def _load(store: Store, key: Key) -> Window:
    """The window as it was analysed, with its operations.

    Raises:
        Conflict: nothing in it can be replayed.
    """
    with store.snapshot() as conn:
        result = windows.get(conn, key.job_id, key.window_id)
        blob = windows.trace(conn, key.job_id, key.window_id)
        epoch = result["window"]["epoch"]
        registration = jobs.run(conn, key.job_id, epoch)
    if blob is None or not result["steps"]:
        raise Conflict(f"window {key.window_id} has no step whose operations can be replayed")
    return _window(key, result, blob, registration.job)


def _window(key: Key, result: dict[str, Any], blob: bytes, job: Job) -> Window:
    header, steps = result["window"], tuple(result["steps"])
    skipped = (SkippedStep(each["step"], each["reason"]) for each in result["skipped_steps"])
    epoch, first_step = (int(number) for number in key.window_id.split("-"))
    return Window(
        job=job,
        epoch=epoch,
        first_step=first_step,
        steps=steps,
        trace=unpack(blob).trace(steps),
        skipped=tuple(skipped),
        state=header["state"],
        revision=header["revision"],
    )
