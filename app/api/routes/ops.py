"""Operations: the workers' way in.

Thousands of batches come here every second, so they are answered as plain ASGI: FastAPI's way to
a function and back takes longer than reading 200 operations. Its part is the description.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import header
from app.api.deps import OF_BODIES, refusals
from app.api.errors import problem
from app.api.fields import Answer, JobId
from app.api.principal import principal_of
from app.api.recording_out import ToldPlanOut
from app.api.recording_plans import step_to_go_by, told
from app.api.service import Service
from app.errors import Conflict, InvalidRequest, PacelineError, TooLarge
from app.ingest.codec import (
    BINARY_TYPE,
    JSON_TYPE,
    Decoded,
    NoRowTaken,
    RowError,
    decode,
    encode,
)
from app.store.jobs import JobRecord
from app.trace.names import JOB_PATTERN, is_job

PUSH_PATH = "/api/v1/jobs/{job_id}/ops"
_PATH = re.compile(PUSH_PATH.replace("{job_id}", "([^/]+)"))
# Above these, reading a body would hold up everybody else for a millisecond or more.
BINARY_ASIDE_BYTES = 1 << 20
JSON_ASIDE_BYTES = 1 << 14
COMPRESSED_ASIDE_BYTES = 1 << 12
MAX_ASIDE = 4  # bodies read beside it at once: each may hold 40 MB, and other routes need threads

_EXAMPLE = {
    "version": 1,
    "epoch": 1,
    "rank": 0,
    "dp_rank": 0,
    "stage": 0,
    "host": "gpu-node-7",
    "batch_seq": 0,
    "steps_done": [[100, 2]],
    "columns": {
        "step": [100, 100],
        "optype": ["forward-compute", "backward-compute"],
        "start_ns": [1000000, 4000000],
        "duration_ns": [3000000, 6000000],
        "mb_id": [0, 0],
    },
}
_BODY = {
    "required": True,
    "content": {
        BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}},
        JSON_TYPE: {"schema": {"$ref": "#/components/schemas/OpsIn"}, "example": _EXAMPLE},
    },
}

# What `PushOps` answers, for /openapi.json; nothing is routed by it.
described = APIRouter(tags=["ops"])


class RowProblem(Answer):
    """Why one row was refused."""

    index: int
    code: str
    message: str


class OpsOut(Answer):
    """What became of a batch; both counts are final."""

    accepted: int
    rejected: int
    errors: list[RowProblem]
    recording: ToldPlanOut | None = Field(
        None, description="Which steps to record; not there where nobody has made a plan."
    )


@described.post(
    PUSH_PATH,
    operation_id="push_ops",
    summary="Push one batch of one worker's operations",
    status_code=202,
    response_model=OpsOut,
    responses=refusals(404, 409, *OF_BODIES),
    openapi_extra={"requestBody": _BODY},
)
def push_ops(job_id: JobId) -> None:
    """Answers 202 once the batch is on disk in the event queue.

    Rows that break a rule are refused one by one; sending the same batch again has no effect.
    Operation types beside the built-in ones are registered with the job, in `op_types`. The body
    may be compressed, once, with gzip or zstd (Content-Encoding).
    """


@dataclass(slots=True)
class Pushed:
    """A request's body and what its headers say of it; its operations once they could be read."""

    body: bytes
    content_type: str
    content_encoding: str
    num_rows: int | None = None

    @property
    def takes_long(self) -> bool:
        """Whether to read it beside the event loop."""
        if self.content_encoding:
            return len(self.body) > COMPRESSED_ASIDE_BYTES
        is_binary = self.content_type == BINARY_TYPE
        return len(self.body) > (BINARY_ASIDE_BYTES if is_binary else JSON_ASIDE_BYTES)


class PushOps:
    """Answers what is pushed, and hands every other request on."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        monotonic: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._service = service
        self._monotonic = monotonic
        self._aside = asyncio.Semaphore(MAX_ASIDE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            return await self._app(scope, receive, send)
        if scope["method"] != "POST":
            refusal = problem(scope, 405, "method_not_allowed", "send POST", {"allow": "POST"})
            return await refusal(scope, receive, send)
        answer = await self._push(_key(scope, found[1]), await _pushed(scope, receive))
        length = b"%d" % len(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        return None

    async def _push(self, key: str, pushed: Pushed) -> bytes:
        """The answer's body, once the batch is on disk in the queue."""
        began_s, measured = self._monotonic(), self._service.measured
        try:
            job, decoded = await self._read(key, pushed)
            await self._service.writer.append(key, encode(decoded.batch, job.op_types))
        except PacelineError as error:
            if pushed.num_rows is not None:
                measured.refuse(rows=pushed.num_rows, reason=error.code)
            raise
        ack_s = self._monotonic() - began_s
        measured.batch(rows=pushed.num_rows or 0, refused=decoded.rejected, ack_s=ack_s)
        accepted = decoded.batch.columns.num_ops + decoded.batch.num_group_rows
        answer = _Answer(accepted, decoded.rejected, decoded.errors)
        if (plan := told(job.plans, job.last_step)) is not None:
            answer.recording = plan
        return _ANSWER.encode(answer)

    async def _read(self, key: str, pushed: Pushed) -> tuple[JobRecord, Decoded]:
        jobs = self._service.registrations
        job = await jobs.find(key)
        try:
            return job, await self._decoded(job, pushed)
        except (InvalidRequest, Conflict):
            job = await jobs.find_anew(key)
            return job, await self._decoded(job, pushed)

    async def _decoded(self, job: JobRecord, pushed: Pushed) -> Decoded:
        try:
            decoded = await _in_time(job, pushed, self._aside)
        except NoRowTaken as error:
            pushed.num_rows = error.num_rows
            raise
        taken = decoded.batch.columns.num_ops + decoded.batch.num_group_rows
        num_rows = pushed.num_rows = taken + decoded.rejected
        now_s = self._service.now_s()
        self._service.registrations.check_epoch(job, decoded.batch.epoch, now_s)
        if num_rows > self._service.max_batch_rows:
            most = self._service.max_batch_rows
            raise TooLarge(f"a batch has at most {most} operations: split it")
        return decoded


class _Answer(msgspec.Struct):
    accepted: int
    rejected: int
    errors: list[RowError]
    recording: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_ANSWER = msgspec.json.Encoder()


async def _in_time(job: JobRecord, pushed: Pushed, aside: asyncio.Semaphore) -> Decoded:
    read = partial(
        decode,
        pushed.body,
        pushed.content_type,
        job.parallelism,
        job.op_types,
        content_encoding=pushed.content_encoding,
        last_step=step_to_go_by(job),
    )
    if not pushed.takes_long:
        return read()
    try:
        async with aside:
            return await run_in_threadpool(read)
    except PacelineError as error:
        # Its traceback holds who waited for the thread, who holds it: a circle with the body in
        # it, of up to 8 MB, until the next collection, which may be minutes away.
        raise error.with_traceback(None) from None


async def _pushed(scope: Scope, receive: Receive) -> Pushed:
    # Whole by now: `Bodies` has read it.
    body = (await receive()).get("body", b"")
    media, encoding = header(scope, b"content-type"), header(scope, b"content-encoding")
    return Pushed(body, (media or b"").decode("latin-1"), (encoding or b"").decode("latin-1"))


def _key(scope: Scope, job_id: str) -> str:
    if not is_job(job_id):
        raise InvalidRequest(f"path.job_id: {job_id[:100]!r} is no job's id, as {JOB_PATTERN}")
    return principal_of(scope).key(job_id)
