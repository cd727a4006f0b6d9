"""Spans that ranks send become batches in the event queue, of those jobs that asked for it."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api.held_spans import Held, RankKey
from app.api.principal import Principal
from app.api.routes.jobs import ParallelismIn
from app.api.service import Service
from app.api.span_batch import FIRST_STEP, batch_of, why_unusable
from app.errors import Conflict, InvalidRequest, JobNotFound, NotFound, TooManyRequests
from app.ingest.codec import encode
from app.store import registering
from app.store.jobs import JobRecord
from app.store.registering import TIMES, Registration
from app.trace.job import Parallelism
from app.trace.names import is_job, plain
from app.trace.readers.otlp_sender import ANALYSE, HOST_TIMES_KEY, JOB_KEY, Sender, sender_of
from app.trace.readers.otlp_span import Sent, Span
from app.trace.readers.otlp_steps import STEP, RankStep
from app.trace.readers.otlp_waiting import Ready, WaitingSpans

HOST = "host"  # what the label TIMES says of a run whose times are the hosts'
HOST_TIMES_LABEL = "host_times"  # by which who registers a job opts in
_MAX_MESSAGE = 1000
_MANY_SPANS = 2000  # to look through more would hold up everybody else for milliseconds
_MAX_JOBS = 100  # in one request: each that is not known takes a look into the database
_MAX_STEPS = 1000  # of a rank in one request: each is an entry of the queue
_TOO_MANY = f"more than {_MAX_STEPS:,} steps of one rank in one request: send fewer at once"
_AT_ONCE = 100  # processes or ranks, before others have their turn
_REFUSALS = (InvalidRequest, NotFound, Conflict, TooManyRequests)
_SOME_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,256}")

_T = TypeVar("_T")


@dataclass(slots=True)
class Outcome:
    """What became of a request's spans: how many were refused, and why, each reason once."""

    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def refuse(self, why: str, number: int) -> None:
        """Spans that are not taken."""
        self.refused += number
        self.reasons[why] += number

    @property
    def message(self) -> str:
        """All reasons, the commonest first."""
        told = "; ".join(f"{number} spans: {why}" for why, number in self.reasons.most_common(5))
        return told[:_MAX_MESSAGE]


class SpanFeed:
    """Takes the spans of one caller; `service.spans` holds those of steps that are not over."""

    def __init__(self, service: Service, caller: Principal) -> None:
        self._service = service
        self._caller = caller
        self._outcome = Outcome()
        self._jobs: dict[str, JobRecord | None] = {}
        self._began_s = time.perf_counter()

    async def take(self, found: Sequence[Sent]) -> Outcome:
        """Take what a request says; spans that are no operations are left out without a word.

        Raises:
            Unavailable: queue or database do not answer: the same request may come again.
        """
        ranks = await self._by_rank(found)
        async for worker, spans in _in_turns(ranks.values()):
            try:
                await self._take(worker, spans)
            except _REFUSALS as error:
                self._outcome.refuse(str(error), len(spans))
        self._tell()
        return self._outcome

    def _tell(self) -> None:
        if self._outcome.refused:
            self._service.measured.reject_spans(self._outcome.refused)
            self._service.span_refusals.tell(self._caller.project, self._outcome.reasons)

    async def _by_rank(self, found: Sequence[Sent]) -> "dict[RankKey, tuple[_Worker, list[Span]]]":
        """Spans by who sent them: into however many pieces they are cut, a rank is looked at once.

        Otherwise all that waits of a rank would be sorted again for each piece.
        """
        ranks: dict[RankKey, tuple[_Worker, list[Span]]] = {}
        async for sent in _in_turns(found):
            if sent.num_refused:
                self._outcome.refuse(sent.refused, sent.num_refused)
            if not sent.spans:
                continue
            try:
                worker = await self._worker(sender_of(sent.attributes))
            except _REFUSALS as error:
                self._outcome.refuse(str(error), len(sent.spans))
                continue
            if worker is not None:
                ranks.setdefault(worker.rank_key, (worker, []))[1].extend(sent.spans)
        return ranks

    async def _take(self, worker: "_Worker", spans: Sequence[Span]) -> None:
        held = self._service.spans.of(worker.rank_key)
        async with held.lock:
            if late := held.add(spans):
                self._outcome.refuse("they came after their step was taken", late)
            try:
                if any(span.name == STEP for span in spans):
                    await self._pass_on(held, worker)
            finally:
                self._count(held, worker)

    def _count(self, held: Held, worker: "_Worker") -> None:
        spans = self._service.spans
        if cleared := spans.count(worker.rank_key, held):
            why = f"one step of a rank has more than {spans.most_of_rank:,}: it cannot be taken"
            self._outcome.refuse(why, cleared)

    async def _worker(self, sender: Sender) -> "_Worker | None":
        """Who sends; None of who does the same work as a rank that is recorded."""
        key = self._caller.key(_job_of(sender, self._caller))
        job = await self._looked_up(key)
        _check_opted_in(sender, job)
        is_known = job is not None and not _is_new_run(job, sender)
        sizes = job.parallelism if job is not None and is_known else _checked_sizes(sender)
        dp_rank, stage, peer = sender.place(sizes)
        rank = sizes.usual_rank(dp_rank, stage) if sender.rank is None else sender.rank
        return None if peer else _Worker(key, sender, rank, (dp_rank, stage))

    async def _pass_on(self, held: Held, worker: "_Worker") -> None:
        """Append the steps that are over; nothing is forgotten before all are in the queue."""
        ready = await _ready(held.waiting)
        if not ready.steps:
            return
        job = await self._running(worker, min(step.number for step in ready.steps))
        for step in ready.steps[:_MAX_STEPS]:
            await self._append(step, job, worker)
        if len(ready.steps) > _MAX_STEPS:
            first_ns = ready.steps[_MAX_STEPS].start_ns
            spans = held.waiting.spans
            beyond = sum(spans[each].start_ns >= first_ns for each in ready.used)
            self._outcome.refuse(_TOO_MANY, beyond)
        held.took(ready.used)
        if outside := held.waiting.done(ready):
            self._outcome.refuse("they lie in no megatron.train_step", outside)

    async def _append(self, step: RankStep, job: JobRecord, worker: "_Worker") -> None:
        if why := why_unusable(step):
            self._outcome.refuse(why, 1)
        host = worker.sender.host
        try:
            batch = batch_of(step, job, rank=worker.rank, place=worker.place, host=host)
        except InvalidRequest as error:
            return self._outcome.refuse(str(error), 1)
        await self._service.writer.append(worker.key, encode(batch, job.op_types))
        ack_s = time.perf_counter() - self._began_s
        self._service.measured.batch(rows=batch.columns.num_ops, refused=0, ack_s=ack_s)
        return None

    async def _looked_up(self, key: str) -> JobRecord | None:
        if key not in self._jobs:
            if len(self._jobs) >= _MAX_JOBS:
                raise InvalidRequest(
                    f"spans of more than {_MAX_JOBS} jobs in one request: split it"
                )
            self._jobs[key] = await _found(self._service.registrations.find, key)
        return self._jobs[key]

    async def _running(self, worker: "_Worker", first_step: int) -> JobRecord:
        """The job in the run of these spans, which is registered if nobody has done so."""
        find, find_anew = self._service.registrations.find, self._service.registrations.find_anew
        job = await _found(find, worker.key)
        if job is None or _is_new_run(job, worker.sender):
            # A run that began elsewhere a moment ago must not be superseded by an older one.
            job = await _found(find_anew, worker.key)
        if job is None or _is_new_run(job, worker.sender):
            registration = _registration(worker, first_step, job)
            await run_in_threadpool(self._register, worker.key, registration)
            job = await find_anew(worker.key)
        now_s = self._service.now_s()
        self._service.registrations.check_epoch(job, job.epoch, now_s)
        _check_of_spans(job)
        return job

    def _register(self, key: str, registration: Registration) -> None:
        service = self._service
        with service.store.write() as conn:
            registering.register(
                conn,
                key,
                registration,
                now_s=service.now_s(),
                most_active=service.max_jobs,
            )
        service.registrations.forget(key)
        service.announcer.announce({"event": "job", "job_id": key})


async def _found(find: Callable[[str], Awaitable[JobRecord]], key: str) -> JobRecord | None:
    try:
        return await find(key)
    except JobNotFound:
        return None


async def _in_turns(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The items, with everybody else's requests in between."""
    for at, item in enumerate(items, 1):
        if at % _AT_ONCE == 0:
            await asyncio.sleep(0)
        yield item


async def _ready(waiting: WaitingSpans) -> Ready:
    if len(waiting.spans) <= _MANY_SPANS:
        return waiting.ready()
    return await run_in_threadpool(waiting.ready)


@dataclass(frozen=True, slots=True)
class _Worker:
    key: str
    sender: Sender
    rank: int
    place: tuple[int, int]

    @property
    def rank_key(self) -> RankKey:
        """Under which the rank's spans are held."""
        return self.key, self.sender.run_key or "", self.rank


def _registration(worker: _Worker, first_step: int, before: JobRecord | None) -> Registration:
    sender, job_id = worker.sender, plain(worker.key)
    labels = {} if before is None else before.labels
    if before is not None and before.ended_s is None:
        _check_of_spans(before)
    if sender.run_key is None or not _SOME_TEXT.fullmatch(sender.run_key):
        raise InvalidRequest("the run is not told: set paceline.run_key, or nemo.run.id")
    sizes = _checked_sizes(sender)
    return Registration(
        name=job_id,
        parallelism=sizes,
        num_gpus=sizes.world_size,
        framework="megatron-lm",
        labels={**labels, TIMES: HOST, FIRST_STEP: str(first_step)},
        run_key=sender.run_key,
    )


def _check_of_spans(job: JobRecord) -> None:
    """Returns if the run is one of spans: in another, their batches would displace its own.

    Raises:
        Conflict: it is recorded by other means.
    """
    if not _has_host_times(job):
        raise Conflict(
            f"job {plain(job.job_id)!r} is recorded by other means, in run {job.run_key[:60]!r}: "
            f"set {JOB_KEY} to another name, end that run, or register it with the label "
            f"{HOST_TIMES_LABEL}: {ANALYSE}"
        )


def _is_new_run(job: JobRecord, sender: Sender) -> bool:
    return sender.run_key not in (None, job.run_key)


def _is_labelled(job: JobRecord) -> bool:
    return job.labels.get(HOST_TIMES_LABEL) == ANALYSE


def _has_host_times(job: JobRecord) -> bool:
    return job.labels.get(TIMES) == HOST or _is_labelled(job)


def _job_of(sender: Sender, caller: Principal) -> str:
    if sender.job is not None and not is_job(sender.job):
        raise InvalidRequest(f"{JOB_KEY} is {sender.job[:100]!r}, which is no job's id")
    job_id = sender.job or caller.job
    if job_id is None:
        raise InvalidRequest(f"the job is not told: set OTEL_RESOURCE_ATTRIBUTES={JOB_KEY}=NAME")
    return job_id


def _check_opted_in(sender: Sender, job: JobRecord | None) -> None:
    """Returns if the job wants host times analysed.

    Raises:
        InvalidRequest: nobody has said so.
    """
    if not (sender.is_opted_in or (job is not None and _is_labelled(job))):
        raise InvalidRequest(
            "host times are analysed only where that is asked for, as they are not the GPUs' "
            f"(docs/feeds/otlp.md): add {HOST_TIMES_KEY}={ANALYSE} to OTEL_RESOURCE_ATTRIBUTES"
        )


def _checked_sizes(sender: Sender) -> Parallelism:
    """The job's sizes as the resource names them, if a job of that many workers is taken here."""
    try:
        return ParallelismIn(**sender.sizes).checked()
    except ValidationError as error:
        found = error.errors()[0]
        raise InvalidRequest(
            f"{found['loc'][0]}: {found['msg']}: set dl.data_parallel.size and "
            "dl.pipeline_parallel.size, or register the job"
        ) from error
