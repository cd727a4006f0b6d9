"""Operations: the workers' way in."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.api.deps import ServiceDep, refusals
from app.api.fields import Answer, JobId
from app.api.registrations import check_epoch
from app.api.service import Service
from app.errors import Conflict, InvalidRequest, TooLarge
from app.ingest.codec import BINARY_TYPE, JSON_TYPE, Decoded, decode, encode
from app.store.jobs import JobRecord

router = APIRouter(tags=["ops"])

# Above this, decoding would hold up everybody else for a millisecond or more.
DECODE_ASIDE_BYTES = 1 << 16

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
async def push_ops(
    job_id: JobId,
    request: Request,
    service: ServiceDep,
    content_type: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Answers 202 once the batch is on disk in the event queue.

    Rows that break a rule are refused one by one; sending the same batch again has no effect.
    Operation types beside the built-in ones are registered with the job, in `op_types`.
    """
    body = await request.body()
    job = await service.registrations.find(job_id)
    try:
        decoded = await _decoded(service, job, body, content_type)
    except (InvalidRequest, Conflict):
        job = await service.registrations.find_anew(job_id)
        decoded = await _decoded(service, job, body, content_type)
    await service.writer.append(job_id, encode(decoded.batch, job.op_types))
    return _accepted(decoded)


async def _decoded(service: Service, job: JobRecord, body: bytes, content_type: str) -> Decoded:
    if len(body) < DECODE_ASIDE_BYTES:
        decoded = decode(body, content_type, job.parallelism, job.op_types)
    else:
        decoded = await run_in_threadpool(decode, body, content_type, job.parallelism, job.op_types)
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
