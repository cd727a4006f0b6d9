"""Closed windows as they are stored, with their operations: which there are, and one of them."""

from typing import Any, NamedTuple

from app.errors import Conflict
from app.ingest.trace_codec import StoredWindow, unpack_window
from app.store import hosts, jobs, windows
from app.store.engine import Connection, Store
from app.store.windows import WindowSummary
from app.trace.job import Job
from app.trace.names import plain
from app.trace.window import SkippedStep, Window

_WAIT = "operations are kept when a window closes"
_LOOKED_THROUGH = 100  # windows of a run that fails for longer than that have nothing to replay


class Key(NamedTuple):
    """One revision of one window of a job."""

    job_id: str
    window_id: str
    revision: int


def key_of(conn: Connection, job_id: str, window_id: str) -> Key:
    """The newest revision of a closed window; `latest` is the newest one of the current run.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
        Conflict: the window is still open, or no closed one of the run can be replayed.
    """
    if window_id == "latest":
        found = _latest(conn, job_id)
    else:
        found = windows.summary(conn, job_id, window_id)
        if found.state == "open":
            raise _still_open(conn, job_id, found)
    return Key(job_id, found.window_id, found.revision)


def _latest(conn: Connection, job_id: str) -> WindowSummary:
    """The newest closed window of the current run that has steps."""
    epoch, job = jobs.get(conn, job_id).epoch, plain(job_id)
    closed = [each for each in _newest_closed(conn, job_id) if each.epoch == epoch]
    if not closed:
        raise Conflict(f"job {job!r} has no closed window in its current run yet: {_WAIT}")
    found = _first_with_steps(closed)
    if found is None:
        newest = closed[0].window_id
        why = _nothing_in(newest, windows.get(conn, job_id, newest))
        raise Conflict(
            f"job {job!r} has closed windows in its current run, but none to replay: {why}"
        )
    return found


def _still_open(conn: Connection, job_id: str, found: WindowSummary) -> Conflict:
    closed = _newest_closed(conn, job_id)
    newest = _first_with_steps(closed)
    if newest is not None:
        instead = f"the newest closed one is {newest.window_id}"
    else:
        instead = "none that has closed can be replayed" if closed else "none has closed yet"
    return Conflict(f"window {found.window_id} is still open, and {_WAIT}; {instead}")


def _newest_closed(conn: Connection, job_id: str) -> list[WindowSummary]:
    newest, _ = windows.page(conn, job_id, limit=_LOOKED_THROUGH)
    return [each for each in newest if each.state != "open"]


def _first_with_steps(summaries: list[WindowSummary]) -> WindowSummary | None:
    return next((each for each in summaries if each.num_steps), None)


def _nothing_in(window_id: str, result: dict[str, Any]) -> str:
    """That a window cannot be replayed, and why not."""
    skipped = result["skipped_steps"]
    reason = f": step {skipped[0]['step']}: {skipped[0]['reason']}" if skipped else ""
    return f"window {window_id} has no step whose operations can be replayed{reason}"


def load(store: Store, key: Key) -> Window:
    """The window as it was analysed, with its operations.

    Raises:
        Conflict: nothing in it can be replayed, or its operations are kept no longer.
    """
    with store.snapshot() as conn:
        result = windows.get(conn, key.job_id, key.window_id)
        blob = windows.trace(conn, key.job_id, key.window_id)
        epoch = result["window"]["epoch"]
        registration = jobs.run(conn, key.job_id, epoch)
        names = hosts.load(conn, key.job_id, epoch)
    if not result["steps"]:
        raise Conflict(_nothing_in(key.window_id, result))
    if blob is None:
        raise Conflict(
            f"the operations of window {key.window_id} are older than they are kept "
            "(PACELINE_KEEP_RAW_DAYS, or its project's own): its result is still there, and "
            "nothing more can be asked of it"
        )
    return _window(key, result, unpack_window(blob), registration.job, names)


def _window(
    key: Key, result: dict[str, Any], stored: StoredWindow, job: Job, names: dict[hosts.Worker, str]
) -> Window:
    header, steps = result["window"], tuple(result["steps"])
    skipped = (SkippedStep(each["step"], each["reason"]) for each in result["skipped_steps"])
    epoch, first_step = (int(number) for number in key.window_id.split("-"))
    origin_ns, groups = stored.ops.origins_ns(steps), stored.groups
    return Window(
        job=job,
        epoch=epoch,
        first_step=first_step,
        steps=steps,
        trace=stored.ops.trace(steps),
        skipped=tuple(skipped),
        state=header["state"],
        revision=header["revision"],
        hosts=names,
        origin_ns=origin_ns,
        collectives=None if groups is None else groups.collectives(steps, origin_ns),
    )
