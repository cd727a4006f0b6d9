"""A server with a job for everything that a page has to be able to show, made once a session."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from app.cli import app
from app.ingest.batch import OpBatch
from app.ingest.wire import codec
from app.store import runs, tokens
from app.store.database import Store
from app.synth.record import RecordedSteps
from app.trace.job import Parallelism
from app.trace.window import OpColumns
from tests.browser.paceline import Paceline, running
from tests.browser.stocked_jobs import StockedJob, made, stocked_jobs
from tests.browser.waiting import wait_until
from tests.shared_traces import SHARED_TRACES

PUBLISHED = "published-st"
_SILENT_FOR_S = 360.0
_SETTINGS = {
    # Nothing here falls silent by itself while tests run, but missing workers are soon given up.
    "silent_after_s": "86400",
    "step_deadline_s": "2",
    "window_steps": "8",
    # A made step takes a second: no job here is slow for half a minute.
    "alert_for_s": "0",
    # Nobody listens there: the alerts page has deliveries that fail.
    "webhook_url": "http://127.0.0.1:9/hook/secret-part?token=secret-part",
    "webhook_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


class Stocked:
    """The server, and the links to its pages that sign in by themselves.

    `empty_token` is of a project that has no job yet.
    """

    def __init__(self, server: Paceline, empty_token: str) -> None:
        self.server = server
        self.empty_token = empty_token
        self.url = server.url

    def link(self, path: str = "/", token: str | None = None) -> str:
        """A page's address, with a token; `path` begins with a slash and may have a query."""
        return f"{self.url}{path}#token={token or self.server.token}"

    def get(self, path: str, **params: Any) -> Any:
        """The JSON that the API answers."""
        return self.server.get(path, **params)

    @property
    def has_published(self) -> bool:
        """Whether the published trace is there, as the job `published-st`."""
        return SHARED_TRACES.is_dir()


@contextlib.contextmanager
def stocked_server(directory: Path) -> Iterator[Stocked]:
    """A running `paceline serve` of which everything is analysed that was pushed."""
    with running("serve", directory, **_SETTINGS) as server:
        _stock(server)
        with _store(directory) as store:
            _fall_silent(store)
            empty_token = _new_project(store)
        yield Stocked(server, empty_token)


def _stock(server: Paceline) -> None:
    stock = stocked_jobs()
    for job in stock:
        _push(server, job)
    server.register("not-analysed", made(2, 2))
    if SHARED_TRACES.is_dir():
        _replay(server, SHARED_TRACES / "trace-ST.parquet", PUBLISHED)
    for job in stock:
        _wait(server, job)


def _push(server: Paceline, job: StockedJob) -> None:
    """Every run after the other; each ends as it is pushed."""
    for number, num_steps in enumerate(job.runs, start=1):
        epoch = server.register(job.job_id, job.made, run_key=f"run-{number}", **job.parts)
        record = job.made.record(range(num_steps))
        for batch in batches(record, job, epoch):
            server.push_body(job.job_id, codec.encode(batch))
    if job.ends:
        server.http.post(f"/jobs/{job.job_id}/end", json={}).raise_for_status()


def batches(record: RecordedSteps, job: StockedJob, epoch: int) -> Iterator[OpBatch]:
    """One of each worker with all that it recorded, as if the last step had just ended."""
    sizes = record.job.parallelism
    now_ns = time.time_ns() - int((record.start_ns + record.duration_ns).max())
    for dp_rank, stage in np.ndindex(sizes.dp_size, sizes.pp_size):
        rows = np.flatnonzero((record.dp_rank == dp_rank) & (record.stage == stage))
        if not rows.size:
            continue
        steps, counts = np.unique(record.step[rows], return_counts=True)
        yield OpBatch(
            epoch=epoch,
            rank=int(record.rank[rows[0]]),
            dp_rank=dp_rank,
            stage=stage,
            host=job.host(dp_rank, stage),
            batch_seq=0,
            steps_done=tuple(zip(steps.tolist(), counts.tolist(), strict=True)),
            columns=_columns(record, rows, now_ns),
        )


def _columns(record: RecordedSteps, rows: Any, later_ns: int) -> OpColumns:
    def optional(name: str) -> Any:
        column = getattr(record, name)
        return None if column is None else column[rows].astype(np.int64)

    return OpColumns(
        step=record.step[rows].astype(np.int64),
        start_ns=record.start_ns[rows] + later_ns,
        duration_ns=record.duration_ns[rows],
        seq_id=record.seq_id[rows].astype(np.int64),
        mc=record.mc[rows].astype(np.int64),
        mb_id=record.mb_id[rows].astype(np.int64),
        optype=record.optype[rows].astype(np.int16),
        tokens=optional("tokens"),
        seq_len_sq=optional("seq_len_sq"),
    )


def _replay(server: Paceline, trace: Path, job_id: str) -> None:
    """The published trace as `paceline replay` sends it, ended."""
    arguments = ["replay", str(trace), "--speed", "max", "--url", server.url]
    answer = CliRunner().invoke(app, [*arguments, "--token", server.token, "--job", job_id])
    assert answer.exit_code == 0, answer.output


def _wait(server: Paceline, job: StockedJob) -> None:
    last = job.runs[-1] - 1
    path = f"/jobs/{job.job_id}/steps"
    wait_until(
        lambda: bool(server.get(path, first=last, last=last)["items"]),
        f"step {last} of {job.job_id} is analysed",
    )


@contextlib.contextmanager
def _store(directory: Path) -> Iterator[Store]:
    """The server's own store, to write what no test has the time to wait for."""
    store = Store(f"sqlite:///{directory / 'data' / 'paceline.db'}")
    yield store
    store.close()


def _fall_silent(store: Store) -> None:
    """What the consumer writes of a job after minutes without data."""
    since_s = time.time() - _SILENT_FOR_S
    sizes = Parallelism(4, 2, tp_size=8)
    with store.write() as conn:
        stalled = runs.SilentRanks(stalled_since_s=since_s)
        runs.save_silent_ranks(conn, "default/stalled", 1, stalled)
        rank, worker = sizes.usual_rank(1, 1), 1 * sizes.pp_size + 1
        silent = runs.SilentRanks((rank,), (worker,), since_s)
        runs.save_silent_ranks(conn, "default/silent", 1, silent)


def _new_project(store: Store) -> str:
    wanted = tokens.NewToken("empty", "", tokens.checked_scopes(["read", "write"]), None, None)
    with store.write() as conn:
        _, text = tokens.create(conn, wanted, now_s=time.time())
    return text
