"""OTLP traces: spans of ranks become batches of jobs that opted in."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Header, Request, Response
from pydantic import ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool

from app.api.http.fields import ResponseModel
from app.api.http.principal import TRACES_PATH, Principal
from app.api.routes.alerts.silences import end_silences_with_run
from app.api.routes.dependencies import ApiRouter, CallerDep, ServiceDep
from app.api.routes.jobs.jobs import ParallelismIn
from app.api.service.otlp_buffer import (
    FIRST_STEP,
    JSON_TYPE,
    LIVE_NAMES,
    PROTOBUF_TYPE,
    RankBuffer,
    RankKey,
    otlp_format,
    step_batch,
    why_step_unusable,
)
from app.api.service.service import Service
from app.errors import Conflict, InvalidRequest, JobNotFound, NotFound, TooManyRequests
from app.ingest.wire.codec import encode
from app.store import runs
from app.store.jobs import JobRecord
from app.store.runs import TIMES_LABEL, Registration
from app.trace.job import Parallelism, is_job_name, job_of
from app.trace.readers.otlp.spans import (
    ANALYSE,
    HOST_TIMES_KEY,
    JOB_KEY,
    OtlpSender,
    OtlpSpan,
    SentSpans,
    sender_of,
)
from app.trace.readers.otlp.steps import STEP_SPAN, RankStep

HOST_TIMES = "host"  # what the label TIMES says of a run whose times are the hosts'
HOST_TIMES_LABEL = "host_times"  # label by which a job opts in
_MAX_MESSAGE = 1000
_MAX_INLINE_SPANS = 2000  # more would block the event loop for milliseconds
_MAX_JOBS = 100  # per request: an unknown one takes a query
_MAX_STEPS = 1000  # of a rank per request: each is an entry of the queue
_TOO_MANY_STEPS = f"more than {_MAX_STEPS:,} steps of one rank in one request: send fewer at once"
_TURN_SIZE = 100  # processes or ranks between two yields to the event loop
_SPAN_ERRORS = (InvalidRequest, NotFound, Conflict, TooManyRequests)
_RUN_KEY = re.compile(r"[^\x00-\x1f\x7f]{1,256}")

_T = TypeVar("_T")


@dataclass(slots=True)
class SpanOutcome:
    """Refused spans of a request: how many, and the reasons."""

    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def refuse(self, why: str, number: int) -> None:
        """Count refused spans with their reason."""
        self.refused += number
        self.reasons[why] += number

    @property
    def message(self) -> str:
        """All reasons, the commonest first."""
        text = "; ".join(f"{number} spans: {why}" for why, number in self.reasons.most_common(5))
        return text[:_MAX_MESSAGE]


class SpanFeed:
    """Takes one caller's spans; `service.span_buffer` holds those of unfinished steps."""

    def __init__(self, service: Service, caller: Principal) -> None:
        self._service = service
        self._caller = caller
        self._outcome = SpanOutcome()
        self._jobs: dict[str, JobRecord | None] = {}
        self._began_s = time.perf_counter()

    async def take(self, parts: Sequence[SentSpans]) -> SpanOutcome:
        """Take the spans of a request; those that are no operations are ignored.

        Raises:
            Unavailable: queue or database do not answer: send the same request again.
        """
        ranks = await self._by_rank(parts)
        async for worker, spans in _yielding(ranks.values()):
            try:
                await self._take(worker, spans)
            except _SPAN_ERRORS as error:
                self._outcome.refuse(str(error), len(spans))
        if self._outcome.refused:
            self._service.metrics.reject_spans(self._outcome.refused)
            self._service.span_refusals.log(self._caller.project, self._outcome.reasons)
        return self._outcome

    async def _by_rank(
        self, parts: Sequence[SentSpans]
    ) -> "dict[RankKey, tuple[_SpanWorker, list[OtlpSpan]]]":
        """Spans by rank, so that each rank is handled once per request.

        Otherwise each part of a request would sort all waiting spans of the rank again.
        """
        ranks: dict[RankKey, tuple[_SpanWorker, list[OtlpSpan]]] = {}
        async for sent in _yielding(parts):
            if sent.num_refused:
                self._outcome.refuse(sent.refused, sent.num_refused)
            if not sent.spans:
                continue
            try:
                worker = await self._worker(sender_of(sent.attributes))
            except _SPAN_ERRORS as error:
                self._outcome.refuse(str(error), len(sent.spans))
                continue
            if worker is not None:
                ranks.setdefault(worker.rank_key, (worker, []))[1].extend(sent.spans)
        return ranks

    async def _take(self, worker: "_SpanWorker", spans: Sequence[OtlpSpan]) -> None:
        buffer = self._service.span_buffer.rank(worker.rank_key)
        async with buffer.lock:
            if late := buffer.add(spans):
                self._outcome.refuse("they came after their step was taken", late)
            try:
                if any(span.name == STEP_SPAN for span in spans):
                    await self._pass_on(buffer, worker)
            finally:
                self._count(buffer, worker)

    def _count(self, buffer: RankBuffer, worker: "_SpanWorker") -> None:
        spans = self._service.span_buffer
        if cleared := spans.update_size(worker.rank_key, buffer):
            why = f"one step of a rank has more than {spans.max_of_rank:,}: it cannot be taken"
            self._outcome.refuse(why, cleared)

    async def _worker(self, sender: OtlpSender) -> "_SpanWorker | None":
        """The sending worker; None for a rank that duplicates a recorded one."""
        key = self._caller.key(_job_of(sender, self._caller))
        job = await self._looked_up(key)
        _check_opted_in(sender, job)
        is_known = job is not None and not _is_new_run(job, sender)
        sizes = job.parallelism if job is not None and is_known else _checked_sizes(sender)
        dp_rank, stage, peer = sender.place(sizes)
        rank = sizes.usual_rank(dp_rank, stage) if sender.rank is None else sender.rank
        return None if peer else _SpanWorker(key, sender, rank, (dp_rank, stage))

    async def _pass_on(self, buffer: RankBuffer, worker: "_SpanWorker") -> None:
        """Queue the finished steps; spans are dropped only after all are in the queue."""
        waiting = buffer.waiting
        is_short = len(waiting.spans) <= _MAX_INLINE_SPANS
        ready = waiting.ready() if is_short else await run_in_threadpool(waiting.ready)
        if not ready.steps:
            return
        job = await self._running(worker, min(step.number for step in ready.steps))
        for step in ready.steps[:_MAX_STEPS]:
            await self._append(step, job, worker)
        if len(ready.steps) > _MAX_STEPS:
            first_ns = ready.steps[_MAX_STEPS].start_ns
            beyond = sum(waiting.spans[used].start_ns >= first_ns for used in ready.used)
            self._outcome.refuse(_TOO_MANY_STEPS, beyond)
        buffer.mark_taken(ready.used)
        if outside := waiting.done(ready):
            self._outcome.refuse("they lie in no megatron.train_step", outside)

    async def _append(self, step: RankStep, job: JobRecord, worker: "_SpanWorker") -> None:
        if why := why_step_unusable(step):
            self._outcome.refuse(why, 1)
        host = worker.sender.host
        try:
            batch = step_batch(step, job, rank=worker.rank, place=worker.place, host=host)
        except InvalidRequest as error:
            return self._outcome.refuse(str(error), 1)
        await self._service.writer.append(worker.key, encode(batch, job.op_types))
        ack_s = time.perf_counter() - self._began_s
        self._service.metrics.batch(rows=batch.columns.num_ops, refused=0, ack_s=ack_s)
        return None

    async def _looked_up(self, key: str) -> JobRecord | None:
        if key not in self._jobs:
            if len(self._jobs) >= _MAX_JOBS:
                raise InvalidRequest(
                    f"spans of more than {_MAX_JOBS} jobs in one request: split it"
                )
            self._jobs[key] = await _job_or_none(self._service.registrations.get, key)
        return self._jobs[key]

    async def _running(self, worker: "_SpanWorker", first_step: int) -> JobRecord:
        """The job in the run of these spans; registers the run if necessary."""
        known = self._service.registrations
        job = await _job_or_none(known.get, worker.key)
        if job is None or _is_new_run(job, worker.sender):
            # An older run must not supersede one that another process has just registered.
            job = await _job_or_none(known.get_now, worker.key)
        if job is None or _is_new_run(job, worker.sender):
            registration = _registration(worker, first_step, job)
            await run_in_threadpool(self._register, worker.key, registration)
            job = await known.get_now(worker.key)
        known.check_epoch(job, job.epoch, self._service.now_s())
        _check_of_spans(job)
        return job

    def _register(self, key: str, registration: Registration) -> None:
        service = self._service
        now_s, most = service.now_s(), service.public_settings.max_jobs
        with service.store.write() as conn:
            registered = runs.register(conn, key, registration, now_s=now_s, max_active_jobs=most)
            if registered.created:
                end_silences_with_run(conn, service, key)
        service.job_changed(key)


async def _job_or_none(
    look_up: Callable[[str], Awaitable[JobRecord]], key: str
) -> JobRecord | None:
    try:
        return await look_up(key)
    except JobNotFound:
        return None


async def _yielding(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The items, yielding to the event loop in between."""
    for at, item in enumerate(items, 1):
        if at % _TURN_SIZE == 0:
            await asyncio.sleep(0)
        yield item


@dataclass(frozen=True, slots=True)
class _SpanWorker:
    key: str
    sender: OtlpSender
    rank: int
    place: tuple[int, int]

    @property
    def rank_key(self) -> RankKey:
        """Key of the rank in the span buffer."""
        return self.key, self.sender.run_key or "", self.rank


def _registration(worker: _SpanWorker, first_step: int, before: JobRecord | None) -> Registration:
    sender, job_id = worker.sender, job_of(worker.key)
    labels = {} if before is None else before.labels
    if before is not None and before.ended_s is None:
        _check_of_spans(before)
    if sender.run_key is None or not _RUN_KEY.fullmatch(sender.run_key):
        raise InvalidRequest("the run key is missing: set paceline.run_key, or nemo.run.id")
    sizes = _checked_sizes(sender)
    return Registration(
        name=job_id,
        parallelism=sizes,
        num_gpus=sizes.world_size,
        framework="megatron-lm",
        labels={**labels, TIMES_LABEL: HOST_TIMES, FIRST_STEP: str(first_step)},
        run_key=sender.run_key,
    )


def _check_of_spans(job: JobRecord) -> None:
    """Refuse a run that is recorded by other means: batches of spans would replace its own."""
    if job.labels.get(TIMES_LABEL) != HOST_TIMES and not _is_labelled(job):
        raise Conflict(
            f"job {job_of(job.job_id)!r} is recorded by other means, in run {job.run_key[:60]!r}: "
            f"set {JOB_KEY} to another name, end that run, or register it with the label "
            f"{HOST_TIMES_LABEL}: {ANALYSE}"
        )


def _is_new_run(job: JobRecord, sender: OtlpSender) -> bool:
    return sender.run_key not in (None, job.run_key)


def _is_labelled(job: JobRecord) -> bool:
    return job.labels.get(HOST_TIMES_LABEL) == ANALYSE


def _job_of(sender: OtlpSender, caller: Principal) -> str:
    if sender.job is not None and not is_job_name(sender.job):
        raise InvalidRequest(f"{JOB_KEY} is {sender.job[:100]!r}, which is not a valid job id")
    job_id = sender.job or caller.job
    if job_id is None:
        raise InvalidRequest(f"no job name: set OTEL_RESOURCE_ATTRIBUTES={JOB_KEY}=NAME")
    return job_id


def _check_opted_in(sender: OtlpSender, job: JobRecord | None) -> None:
    """Return if the job wants host times analysed; else raises InvalidRequest."""
    if not (sender.is_opted_in or (job is not None and _is_labelled(job))):
        raise InvalidRequest(
            "host times are analysed only where that is asked for, as they are not the GPUs' "
            f"(docs/feeds/otlp.md): add {HOST_TIMES_KEY}={ANALYSE} to OTEL_RESOURCE_ATTRIBUTES"
        )


def _checked_sizes(sender: OtlpSender) -> Parallelism:
    """The job's sizes from the resource, if a job of that many workers is supported."""
    try:
        return ParallelismIn(**sender.sizes).checked()
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(
            f"{first['loc'][0]}: {first['msg']}: set dl.data_parallel.size and "
            "dl.pipeline_parallel.size, or register the job"
        ) from error


router = ApiRouter("ops")

_EXAMPLE: JsonDict = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [{"key": "paceline.job", "value": {"stringValue": "llm-70b"}}]
            },
            "scopeSpans": [{"spans": []}],
        }
    ]
}
_BODY: JsonDict = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": {"type": "object"}, "example": _EXAMPLE},
            PROTOBUF_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class PartialSuccessOut(ResponseModel):
    """Number of refused spans and the reason. Do not send them again."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    rejected_spans: int = Field(alias="rejectedSpans")
    error_message: str = Field(alias="errorMessage")


class TracesOut(ResponseModel):
    """Result of an OTLP request; empty if all spans were accepted."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    partial_success: PartialSuccessOut | None = Field(None, alias="partialSuccess")


@router.post(
    TRACES_PATH,
    summary="Push OpenTelemetry spans (OTLP/HTTP)",
    response_model=TracesOut,
    openapi_extra=_BODY,
)
async def push_spans(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    content_type: Annotated[str, Header(include_in_schema=False)] = "",
    content_encoding: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Accepts spans with Megatron-LM's names. Their times are host times.

    The job must opt in to the analysis of host times (docs/feeds/otlp.md). The answer has the
    request's format; with status 200, it may list refused spans. Spans that are no operations are
    ignored. The body may be compressed with gzip or zstd.
    """
    form = otlp_format(content_type)
    body = await request.body()
    parts = await service.span_bodies.read(body, form, content_encoding, LIVE_NAMES.__contains__)
    outcome = await SpanFeed(service, caller).take(parts)
    return Response(form.answer(outcome.refused, outcome.message), media_type=form.media_type)
