"""The API under test, and helpers to fill it."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpcore
import httpx
import msgspec
import numpy as np
from fastapi import FastAPI
from typing_extensions import override

from app.alerts.guard import Reply, SsrfGuard
from app.engine.report import analyse, report_result
from app.ingest.assembly.op_table import OpTable
from app.ingest.assembly.window_codec import pack_window
from app.ingest.wire.codec import BINARY_TYPE
from app.main import Connections, create_app
from app.result.stored import StoredByStep, split_by_step
from app.result.window_result import WindowResult
from app.settings import Settings
from app.store import tokens, windows
from app.store.database import Store, is_migrated
from app.store.disk.usage import DiskWatch
from app.store.tokens import SCOPES, NewToken, Scope
from app.store.windows import StepRow, WindowRecord
from app.trace.job import job_key
from app.trace.window import Trace, Window
from tests.ingest.memory_queue import MemoryQueue
from tests.results import result_of, window_result
from tests.secret_keys import KEYS

TOKEN = "pl_" + "t" * 40
NOW_S = 1_790_000_000.0
PARALLELISM = {"dp_size": 2, "pp_size": 2}
KEY = job_key("default", "llm-70b")  # the job key behind the API
JOB = {"parallelism": PARALLELISM, "run_key": "run-1"}


class UnconnectedGuard(SsrfGuard):
    """A guard whose receivers can be connected to but never answer: there is no network."""

    @override
    def connect(self, url: str) -> None:
        self.check(url)

    @override
    def post(self, url: str, *, headers: Mapping[str, str], body: bytes) -> Reply:
        self.check(url)
        raise httpcore.ConnectError("tests of the API have no network")


class Clock:
    """A manual clock, and the lag of the database's clock."""

    def __init__(self) -> None:
        self.now_s = NOW_S
        self.behind_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Api:
    """The running application, a client with the token, and its store, queue and clocks."""

    app: FastAPI
    client: httpx.AsyncClient
    store: Store
    queue: MemoryQueue
    clock: Clock
    monotonic: Clock

    def anonymous_client(self, **options: Any) -> httpx.AsyncClient:
        """A client without the token."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)

    def token(self, *scopes: Scope, project: str = "default", **more: Any) -> tuple[str, str]:
        """Id and text of a new token; with all scopes if none is named."""
        wanted = NewToken(project, "made by a test", scopes or SCOPES, **more)
        with self.store.write() as conn:
            record, text = tokens.create(conn, wanted, now_s=self.clock())
        return record.token_id, text

    def client_with(self, token: str) -> httpx.AsyncClient:
        """A client that sends this token."""
        return self.anonymous_client(headers={"authorization": f"Bearer {token}"})

    async def register(self, job_id: str = "llm-70b", **changes: Any) -> int:
        """Register a job; return its epoch."""
        answer = await self.client.put(f"/api/v1/jobs/{job_id}", json=JOB | changes)
        assert answer.status_code in (200, 201), answer.text
        return int(answer.json()["epoch"])

    async def push(self, body: bytes | dict, job_id: str = "llm-70b") -> httpx.Response:
        """The answer to one batch, binary if the body is bytes."""
        path = f"/api/v1/jobs/{job_id}/ops"
        if isinstance(body, dict):
            return await self.client.post(path, json=body)
        headers = {"content-type": BINARY_TYPE}
        return await self.client.post(path, content=body, headers=headers)

    def save_window(self, record: WindowRecord, job_id: str = "llm-70b") -> None:
        """Save a window and its steps, as the consumer does."""
        key = job_key("default", job_id)
        result = record.result
        times = result.step_time_s
        with self.store.write() as conn:
            windows.save(conn, key, record)
            rows = [
                StepRow(
                    epoch=record.epoch,
                    step=step,
                    recorded_s=times.recorded[at],
                    simulated_s=times.simulated[at],
                    ideal_s=times.ideal[at],
                    slowdown=result.step_slowdown[at],
                    window_id=str(result.window.id),
                )
                for at, step in enumerate(result.steps)
            ]
            windows.save_steps(conn, key, rows)


@cache
def _settings(**changes: Any) -> Settings:
    """Cached, as to look for each of them in the environment takes longer than most tests."""
    return Settings(**{"token": TOKEN} | changes)


# The OpenAPI document, made by the first application that was asked for it, as all have the same.
_made: dict[str, Any] = {}


@contextlib.asynccontextmanager
async def running(
    url: str, *, disk: DiskWatch | None = None, demo_switch: Path | None = None, **changes: Any
) -> AsyncIterator[Api]:
    """The API over the database at this URL, started and stopped as a server would.

    Without `disk` it knows of no disk, whatever the machine's is like.
    """
    store, queue, clock, monotonic = Store(url, keys=KEYS), MemoryQueue(4), Clock(), Clock()
    parts = Connections(
        store=store,
        writer=queue.writer,
        listener=queue.listener(),
        announcer=queue.announcer,
        is_migrated=lambda: is_migrated(url),
        close=store.close,
        disk=disk or DiskWatch(),
    )
    settings = _settings(**changes).model_copy(update={"demo_switch": demo_switch})
    app = create_app(
        settings,
        parts,
        now_s=clock,
        database_time=lambda _conn: clock() - clock.behind_s,
        monotonic=monotonic,
    )
    app.openapi_schema = _made.get("document")
    guard = app.state.service.guard
    unconnected = UnconnectedGuard(guard.allowed, guard.allows_http, guard.ports)
    app.state.service = replace(app.state.service, guard=unconnected)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(
        transport=transport,
        base_url="http://localhost",
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    async with app.router.lifespan_context(app), client:
        yield Api(app, client, store, queue, clock, monotonic)
    _made["document"] = app.openapi_schema


def window_record(
    first_step: int = 0, *, epoch: int = 1, slowdown: float | None = 1.25, verdict: str = "ok"
) -> WindowRecord:
    """A closed window of two steps of a job with dp_size 2 and pp_size 2."""
    result = _result(f"{epoch}-{first_step}", epoch, first_step, slowdown, verdict)
    per_step = None
    if result.worker_slowdown and result.dp_rank_slowdown:
        per_step = StoredByStep(
            optype_slowdown={},
            dp_rank_slowdown=(result.dp_rank_slowdown,) * 2,
            stage_slowdown=(),
            worker_slowdown=(result.worker_slowdown,) * 2,
        )
    return WindowRecord(
        epoch=epoch,
        first_step=first_step,
        last_step=first_step + 1,
        revision=2,
        state="complete",
        num_steps=2 if slowdown else 0,
        num_ops=80,
        slowdown=slowdown,
        verdict="low" if verdict == "low" else "ok",
        result=result,
        per_step=per_step,
        trace=None,
        updated_s=NOW_S,
    )


def recorded_record(window: Window) -> WindowRecord:
    """A window record, with its operations if closed."""
    report = replace(analyse(window), lacks_waits=False)  # small windows have no collectives
    result, per_step = split_by_step(report_result(report))
    return WindowRecord(
        epoch=window.epoch,
        first_step=window.first_step,
        last_step=window.steps[-1],
        revision=window.revision,
        state=window.state,
        num_steps=len(window.steps),
        num_ops=window.trace.num_ops,
        slowdown=report.slowdown,
        verdict="low" if report.is_low_fidelity else "ok",
        per_step=per_step,
        result=result,
        trace=None if window.state == "open" else pack_window(op_table(window.trace)),
        updated_s=NOW_S,
    )


def with_result(record: WindowRecord, **parts: Any) -> WindowRecord:
    """The window with these parts of its result, records or objects."""
    known = record.result.as_json() | msgspec.to_builtins(parts)
    return replace(record, result=result_of(known))


def op_table(trace: Trace) -> OpTable:
    """The operations as workers send them, in Unix time."""
    order = np.lexsort((trace.seq_id, trace.optype, trace.stage, trace.dp_rank, trace.step))
    rows = trace.select(order)
    integers = {
        name: getattr(rows, name).astype(np.int64)
        for name in ("step", "rank", "dp_rank", "stage", "seq_id", "mc", "mb_id")
    }
    return OpTable(
        optype=rows.optype.astype(np.int16),
        start_ns=np.rint((NOW_S + rows.start_s) * 1e6).astype(np.int64) * 1000,
        duration_ns=np.rint(rows.duration_s * 1e9).astype(np.int64),
        **integers,
    )


def closed_again(record: WindowRecord, **changes: Any) -> WindowRecord:
    """The window's next revision."""
    return replace(record, revision=record.revision + 1, **changes)


def _result(
    window_id: str, epoch: int, first_step: int, slowdown: float | None, verdict: str
) -> WindowResult:
    is_known = slowdown is not None
    worst = slowdown or 1.0
    numbers = {
        "launch_slowdown": 1.0,
        "slowdown": slowdown,
        "gpu_time_wasted": 1 - 1 / worst,
        "gpu_hours_lost": 0.1,
        "dp_rank_slowdown": [1.0, worst],
        "stage_slowdown": [1.0, worst],
        "worker_slowdown": [[1.0, 1.0], [1.0, worst]],
        "worker_slowdown_estimate": [[1.0, 1.0], [1.0, worst]],
        "m_w": 0.9,
        "m_w_exact": 0.9,
        "m_s": 0.2,
        "stage_share": [0.1, 0.2],
    }
    both = 2 if is_known else 0
    return window_result(
        window={"id": window_id, "epoch": epoch, "revision": 2},
        job={"name": "llm-70b"},
        steps=[first_step, first_step + 1][:both],
        step_time_s={
            "recorded": [1.3] * both,
            "simulated": [1.25] * both,
            "ideal": [1.0] * both,
        },
        fidelity={"discrepancy": 0.01, "verdict": verdict},
        step_slowdown=[slowdown] * both,
        optype_slowdown={"forward-compute": worst} if is_known else {},
        **(numbers if is_known else {}),
    )


def json_batch(**changes: Any) -> dict[str, Any]:
    """A valid batch of worker 0 as JSON: one finished step of two operations."""
    batch = {
        "version": 1,
        "epoch": 1,
        "rank": 0,
        "dp_rank": 0,
        "stage": 0,
        "batch_seq": 0,
        "steps_done": [[0, 2]],
        "columns": {
            "step": [0, 0],
            "optype": ["forward-compute", "backward-compute"],
            "start_ns": [0, 4_000],
            "duration_ns": [4_000, 8_000],
        },
    }
    return batch | changes


def binary_batch(num_ops: int = 2, **changes: Any) -> bytes:
    """A valid batch of worker 0 as msgpack: one finished step of `num_ops` operations."""
    columns = {
        "step": np.zeros(num_ops, "<i8"),
        "optype": np.zeros(num_ops, "u1"),
        "start_ns": np.arange(num_ops, dtype="<i8"),
        "duration_ns": np.ones(num_ops, "<i8"),
        "seq_id": np.arange(num_ops, dtype="<i4"),
        "mc": np.zeros(num_ops, "<i2"),
        "mb_id": np.full(num_ops, -1, "<i4"),
    }
    batch = {
        **json_batch(steps_done=[[0, num_ops]]),
        "optypes": ["forward-compute"],
        "columns": {name: column.tobytes() for name, column in columns.items()},
    }
    return msgspec.msgpack.encode(batch | changes)
