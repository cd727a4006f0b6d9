"""Operations: the workers' way in."""

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import override

from app.api.deps import refusals
from app.api.fields import Answer, JobId
from app.api.principal import principal_of
from app.api.registrations import check_epoch
from app.api.service import Service
from app.errors import Conflict, InvalidRequest, PacelineError, TooLarge
from app.ingest.codec import BINARY_TYPE, JSON_TYPE, Decoded, decode, encode
from app.store.jobs import JobRecord


class _Direct(APIRoute):
    """Hands the request to the function as it is: asking for each argument costs more than that."""

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            answer: Response = await endpoint(request.path_params["job_id"], request)
            return answer

        return handle


router = APIRouter(tags=["ops"], route_class=_Direct)

# Above this, decoding would hold up everybody else for a millisecond or more.
READ_ASIDE_BYTES = {BINARY_TYPE: 1 << 20}
OTHERS_ASIDE_BYTES = 1 << 14
INFLATE_ASIDE_BYTES = 1 << 12

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


@dataclass(frozen=True, slots=True)
class Pushed:
    """A request's body, and what its headers say of it."""

    body: bytes
    content_type: str
    content_encoding: str

    @property
    def takes_long(self) -> bool:
        """Whether to read it beside the event loop."""
        if self.content_encoding:
            return len(self.body) > INFLATE_ASIDE_BYTES
        return len(self.body) > READ_ASIDE_BYTES.get(self.content_type, OTHERS_ASIDE_BYTES)


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


@router.post(
    "/jobs/{job_id}/ops",
    operation_id="push_ops",
    summary="Push one batch of one worker's operations",
    status_code=202,
    response_model=OpsOut,
    responses=refusals(400, 404, 408, 409, 413, 415),
    openapi_extra={"requestBody": _BODY},
)
async def push_ops(job_id: JobId, request: Request) -> Response:
    """Answers 202 once the batch is on disk in the event queue.

    Rows that break a rule are refused one by one; sending the same batch again has no effect.
    Operation types beside the built-in ones are registered with the job, in `op_types`. The body
    may be compressed once, by gzip or zstd.
    """
    service = cast(Service, request.app.state.service)
    key = principal_of(request.scope).key(job_id)
    pushed = Pushed(
        await request.body(),
        request.headers.get("content-type", ""),
        request.headers.get("content-encoding", ""),
    )
    begun_s, num_rows = time.perf_counter(), 0
    try:
        job = await service.registrations.find(key)
        try:
            decoded = await _decoded(service, job, pushed)
        except (InvalidRequest, Conflict):
            job = await service.registrations.find_anew(key)
            decoded = await _decoded(service, job, pushed)
        num_rows = decoded.batch.columns.num_ops + decoded.rejected
        await service.writer.append(key, encode(decoded.batch, job.op_types))
    except PacelineError as error:
        service.measured.refuse(rows=num_rows, reason=error.code)
        raise
    ack_s = time.perf_counter() - begun_s
    service.measured.batch(rows=num_rows, refused=decoded.rejected, ack_s=ack_s)
    return _accepted(decoded)


async def _decoded(service: Service, job: JobRecord, pushed: Pushed) -> Decoded:
    read = partial(
        decode,
        pushed.body,
        pushed.content_type,
        job.parallelism,
        job.op_types,
        content_encoding=pushed.content_encoding,
        last_step=job.last_step,
    )
    decoded = await run_in_threadpool(read) if pushed.takes_long else read()
    check_epoch(job, decoded.batch.epoch)
    num_rows = decoded.batch.columns.num_ops + decoded.rejected
    if num_rows > service.max_batch_rows:
        raise TooLarge(f"a batch has at most {service.max_batch_rows} operations: split it")
    return decoded


def _accepted(decoded: Decoded) -> Response:
    answer: dict[str, Any] = {
        "accepted": decoded.batch.columns.num_ops,
        "rejected": decoded.rejected,
        "errors": decoded.errors,
    }
    return Response(msgspec.json.encode(answer), 202, media_type="application/json")
