"""Operations: workers push batches here.

Thousands of batches arrive every second, so plain ASGI answers them: FastAPI's overhead is longer
than reading 200 operations. FastAPI only describes the route.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl

import msgspec
from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.auth import header
from app.api.http.bodies import read_aside
from app.api.http.errors import problem
from app.api.http.fields import JobId, ResponseModel
from app.api.http.principal import OPS_PATH, principal_of
from app.api.routes.dependencies import ApiRouter, refusals
from app.api.routes.jobs.recording import WorkerPlanOut, plan_for_workers, reference_step
from app.api.service.service import Service
from app.errors import Conflict, InvalidRequest, PacelineError, TooLarge
from app.ingest.batch import RowError
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, AllRowsRejected, Decoded, decode, encode
from app.store.jobs import JobRecord
from app.trace.job import JOB_PATTERN, is_job_name

PUSH_PATH = "/api/v1/jobs/{job_id}/ops"
# Larger bodies are decoded in threads: they would block the event loop for 1 ms or more.
MAX_INLINE_BINARY_BYTES = 1 << 20
MAX_INLINE_JSON_BYTES = 1 << 14
MAX_INLINE_COMPRESSED_BYTES = 1 << 12
# Bodies read beside it at once: each may hold 40 MB, and other routes need threads.
MAX_DECODE_THREADS = 4

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

# Describes `PushOpsMiddleware` in /openapi.json; nothing is routed by it.
described_router = ApiRouter("ops")


class RowProblem(ResponseModel):
    """Why one row was refused."""

    index: int
    code: str
    message: str


class OpsOut(ResponseModel):
    """The result of a batch. Refused operations stay refused: do not send them again."""

    accepted: int
    rejected: int
    errors: list[RowProblem]
    recording: WorkerPlanOut | None = Field(
        None, description="Recording plan; absent if every step is recorded."
    )


@described_router.post(
    PUSH_PATH,
    summary="Push one batch of one worker's operations",
    status_code=202,
    response_model=OpsOut,
    responses=refusals(409),
    openapi_extra={"requestBody": _BODY},
)
def push_ops(job_id: JobId) -> None:
    """Answers 202 once the batch is on disk in the event queue.

    Invalid rows are refused one by one; sending the same batch again has no effect. Custom
    operation types are registered with the job, in `op_types`. The body may be compressed with gzip
    or zstd (Content-Encoding), and as `dictionary` says where registering has named that.
    """


@dataclass(slots=True)
class PushedBatch:
    """A request's body and headers; `num_rows` once it is decoded."""

    body: bytes
    content_type: str
    content_encoding: str
    num_rows: int | None = None

    @property
    def takes_long(self) -> bool:
        """Whether to decode it in a thread."""
        if self.content_encoding:
            return len(self.body) > MAX_INLINE_COMPRESSED_BYTES
        is_binary = self.content_type == BINARY_TYPE
        return len(self.body) > (MAX_INLINE_BINARY_BYTES if is_binary else MAX_INLINE_JSON_BYTES)


class PushOpsMiddleware:
    """Answers pushed batches, and passes on every other request."""

    def __init__(
        self, app: ASGIApp, *, service: Service, monotonic: Callable[[], float] = time.perf_counter
    ) -> None:
        self._app = app
        self._service = service
        self._monotonic = monotonic
        self._aside = asyncio.Semaphore(MAX_DECODE_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        pushed_to = OPS_PATH.fullmatch(scope["path"])
        if pushed_to is None:
            return await self._app(scope, receive, send)
        if scope["method"] != "POST":
            refusal = problem(scope, 405, "method_not_allowed", "send POST", {"allow": "POST"})
            return await refusal(scope, receive, send)
        if given := parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            name, _ = given[0]
            raise InvalidRequest(f"query.{name[:64]}: no such parameter: this takes none")
        answer = await self._push(_job_key(scope, pushed_to[1]), await _read_push(scope, receive))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
        return None

    async def _push(self, key: str, pushed: PushedBatch) -> bytes:
        """The answer's body, once the batch is on disk in the queue."""
        began_s, measured = self._monotonic(), self._service.metrics
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
        answer = _PushAnswer(accepted, decoded.rejected, decoded.errors)
        if job.plans:
            plan = plan_for_workers(job.plans, job.last_step)
            answer.recording = msgspec.Raw(plan.model_dump_json(exclude_unset=True))
        return _ENCODER.encode(answer)

    async def _read(self, key: str, pushed: PushedBatch) -> tuple[JobRecord, Decoded]:
        jobs = self._service.registrations
        job = await jobs.get(key)
        try:
            return job, await self._decoded(job, pushed)
        except (InvalidRequest, Conflict):
            job = await jobs.get_now(key)
            return job, await self._decoded(job, pushed)

    async def _decoded(self, job: JobRecord, pushed: PushedBatch) -> Decoded:
        try:
            decoded = await _decode_batch(job, pushed, self._aside)
        except AllRowsRejected as error:
            pushed.num_rows = error.num_rows
            raise
        taken = decoded.batch.columns.num_ops + decoded.batch.num_group_rows
        num_rows = pushed.num_rows = taken + decoded.rejected
        most = self._service.max_batch_rows
        self._service.registrations.check_epoch(job, decoded.batch.epoch, self._service.now_s())
        if num_rows > most:
            raise TooLarge(f"a batch has at most {most} operations: split it")
        return decoded


class _PushAnswer(msgspec.Struct):
    accepted: int
    rejected: int
    errors: list[RowError]
    recording: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_ENCODER = msgspec.json.Encoder()


async def _decode_batch(job: JobRecord, pushed: PushedBatch, aside: asyncio.Semaphore) -> Decoded:
    read = partial(
        decode,
        pushed.body,
        pushed.content_type,
        job.parallelism,
        job.op_types,
        content_encoding=pushed.content_encoding,
        last_step=reference_step(job) if job.plans else job.last_step,
    )
    return await read_aside(aside, read) if pushed.takes_long else read()


async def _read_push(scope: Scope, receive: Receive) -> PushedBatch:
    # `BodyLimit` has read the whole body.
    body = (await receive()).get("body", b"")
    media, encoding = header(scope, b"content-type"), header(scope, b"content-encoding")
    return PushedBatch(body, (media or b"").decode("latin-1"), (encoding or b"").decode("latin-1"))


def _job_key(scope: Scope, job_id: str) -> str:
    if not is_job_name(job_id):
        raise InvalidRequest(
            f"path.job_id: {job_id[:100]!r} is not a valid job id: want {JOB_PATTERN}"
        )
    return principal_of(scope).key(job_id)
