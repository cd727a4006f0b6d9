"""OTLP spans before they become batches: bodies decoded, steps buffered, refusals logged.

A body is JSON or protobuf, compressed or not; a body that cannot be read is refused with a 4xx.
`SpanBuffer` holds the spans of each rank's unfinished step in bounded memory. A finished step
becomes one batch for the event queue. Refusals are logged, because Python's exporter does not show
the answer to its users.
"""

import asyncio
import re
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from app.api.http.bodies import read_aside
from app.errors import InvalidRequest, TooLarge
from app.ingest.batch import OpBatch, RowRules, are_all_valid
from app.ingest.wire.body import MAX_BODY_BYTES, UnknownFormat, decompress, parse_content_encoding
from app.store.jobs import JobRecord
from app.trace.job import project_of
from app.trace.readers.otlp import messages
from app.trace.readers.otlp.spans import NameWanted, OtlpSpan, SentSpans
from app.trace.readers.otlp.steps import (
    MEGATRON_NAMES,
    OPTYPE_OF_SPAN,
    TRANSFERS,
    RankStep,
    WaitingSpans,
)
from app.trace.window import OpColumns

JSON_TYPE = "application/json"
PROTOBUF_TYPE = "application/x-protobuf"
# Larger bodies are read in threads, as they would block the event loop.
MAX_INLINE_BYTES = 1 << 13
MAX_BODY_THREADS = 2


@dataclass(frozen=True, slots=True)
class OtlpFormat:
    """A content type: parser of requests and writer of answers."""

    media_type: str
    read: Callable[[bytes | bytearray, NameWanted], list[SentSpans]]
    answer: Callable[[int, str], bytes]


_FORMATS = {
    JSON_TYPE: OtlpFormat(JSON_TYPE, messages.read_json, messages.json_answer),
    PROTOBUF_TYPE: OtlpFormat(PROTOBUF_TYPE, messages.read_protobuf, messages.protobuf_answer),
}


def otlp_format(content_type: str) -> OtlpFormat:
    """The format of a Content-Type; raises UnknownFormat if neither JSON nor protobuf."""
    form = _FORMATS.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        raise UnknownFormat(
            f"send {PROTOBUF_TYPE} or {JSON_TYPE}, not {content_type[:100]!r}",
            known_content_types=list(_FORMATS),
        )
    return form


class OtlpBodyReader:
    """Reads bodies; large ones in threads."""

    def __init__(self) -> None:
        self._aside = asyncio.Semaphore(MAX_BODY_THREADS)

    async def read(
        self, body: bytes, form: OtlpFormat, encoding: str, wanted: NameWanted
    ) -> list[SentSpans]:
        """The spans of a body, by process.

        Raises:
            BadRequest: the body is not valid OTLP, or not compressed as its header says.
            UnknownFormat: an unknown Content-Encoding.
            TooLarge: the decompressed body is too large.
        """
        packed = parse_content_encoding(encoding)
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes: split it")

        def decode() -> list[SentSpans]:
            return form.read(decompress(body, packed), wanted)

        # Sixty bytes of zstd can hold a megabyte.
        is_short = not packed and len(body) <= MAX_INLINE_BYTES
        return decode() if is_short else await read_aside(self._aside, decode)


MAX_SPANS = 250_000  # spans in one process, some 400 bytes each
MAX_SPAN_SHARE = 0.5  # so that one project leaves room for the others
MAX_SPANS_OF_RANK = 10_000  # a step of a rank has hundreds
_TAKEN_IDS_PER_SPAN = 50  # ids of taken spans (8 bytes each) count as one buffered span

RankKey = tuple[str, str, int]  # job's key, run, global rank


@dataclass(slots=True, eq=False)
class RankBuffer:
    """Buffered spans of one rank; hold `lock` across awaits while using them."""

    waiting: WaitingSpans = field(default_factory=WaitingSpans)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: int = 0
    _taken: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, spans: Iterable[OtlpSpan]) -> int:
        """Add spans; returns how many are late, without repeated ones."""
        late = [span.span_id for span in spans if not self.waiting.add(span)]
        taken = set(self._taken) if late else set()
        return sum(hash(span_id) not in taken for span_id in late)

    def mark_taken(self, span_ids: Iterable[str]) -> None:
        """Mark spans as queued: a client repeats them if another rank of its request failed."""
        self._taken = array("q", map(hash, span_ids))[-MAX_SPANS_OF_RANK:]

    @property
    def size(self) -> int:
        """Size in spans; at least 1, because ranks can be made up as easily as spans."""
        return len(self.waiting.spans) + 1 + len(self._taken) // _TAKEN_IDS_PER_SPAN


@dataclass(slots=True)
class _ProjectSpans:
    ranks: OrderedDict[RankKey, None] = field(default_factory=OrderedDict)
    num_spans: int = 0


class SpanBuffer:
    """Spans of each rank's unfinished step; the least recently used rank is evicted first.

    Call from the event loop. Steps that are evicted, or lost with the process, are later reported
    as missing by the consumer.
    """

    def __init__(self, *, max_spans: int = MAX_SPANS) -> None:
        self._max_spans = max_spans
        self.max_of_rank = MAX_SPANS_OF_RANK
        self._ranks: OrderedDict[RankKey, RankBuffer] = OrderedDict()
        self._projects: dict[str, _ProjectSpans] = {}
        self.num_spans = 0

    def rank(self, key: RankKey) -> RankBuffer:
        """The buffer of a rank, now the most recently used."""
        buffer = self._ranks.get(key)
        project = self._projects.setdefault(project_of(key[0]), _ProjectSpans())
        if buffer is None:
            buffer = self._ranks[key] = RankBuffer()
            project.ranks[key] = None
        self._ranks.move_to_end(key)
        project.ranks.move_to_end(key)
        return buffer

    def update_size(self, key: RankKey, buffer: RankBuffer) -> int:
        """Update the size of a rank's buffer, and evict what exceeds the limits.

        Returns the number of this rank's spans that were dropped because one step has too many.
        """
        if self._ranks.get(key) is not buffer:  # evicted during an await
            return 0
        cleared = 0
        if len(buffer.waiting.spans) > self.max_of_rank:
            cleared = len(buffer.waiting.spans)
            buffer.waiting.spans.clear()
        project = self._projects[project_of(key[0])]
        self._count(project, buffer, buffer.size)
        while project.num_spans > MAX_SPAN_SHARE * self._max_spans:
            self._forget(next(iter(project.ranks)))
        while self.num_spans > self._max_spans:
            self._forget(next(iter(self._ranks)))
        return cleared

    def _count(self, project: _ProjectSpans, buffer: RankBuffer, size: int) -> None:
        project.num_spans += size - buffer.counted
        self.num_spans += size - buffer.counted
        buffer.counted = size

    def _forget(self, key: RankKey) -> None:
        name = project_of(key[0])
        project = self._projects[name]
        self._count(project, self._ranks.pop(key), 0)
        del project.ranks[key]
        if not project.ranks:
            del self._projects[name]


log = structlog.get_logger()

REPEAT_AFTER_S = 60.0
MAX_REASONS = 10  # per project and period: callers can make up reasons
_MAX_REASON_CHARS = 300
# Without numbers, "step 5 has ..." and "step 6 has ..." are one reason.
_NUMBERS = re.compile(r"\d+")


class SpanRefusalLog:
    """Logs each reason at most once a minute per project; call from the event loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until_s = 0.0
        self._logged: dict[str, set[str]] = {}

    def log(self, project: str, reasons: Counter[str]) -> None:
        """Log reasons that were not logged within this minute; values are numbers of spans."""
        if self._monotonic() >= self._until_s:
            self._until_s = self._monotonic() + REPEAT_AFTER_S
            self._logged.clear()
        for reason, number in reasons.most_common(MAX_REASONS):
            if self._is_new(project, reason):
                log.warning(
                    "spans rejected",
                    project=project,
                    spans=number,
                    reason=reason[:_MAX_REASON_CHARS],
                )

    def _is_new(self, project: str, reason: str) -> bool:
        logged = self._logged.setdefault(project, set())
        kind = _NUMBERS.sub("", reason[:_MAX_REASON_CHARS])
        is_new = kind not in logged and len(logged) < MAX_REASONS
        if is_new:
            logged.add(kind)
        return is_new


FIRST_STEP = "first_step"
MAX_UNREGISTERED_STEPS = 1000  # steps that a run may have done before without registering them
# Transfers are dropped first: Megatron records only some, and their peers are unknown here.
LIVE_NAMES = MEGATRON_NAMES - {
    name for name, optype in OPTYPE_OF_SPAN.items() if optype in TRANSFERS
}


def first_step_of_run(job: JobRecord) -> int:
    """The step of batch 0, from the run's registration."""
    text = job.labels.get(FIRST_STEP, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else 0


def step_batch(
    step: RankStep, job: JobRecord, *, rank: int, place: tuple[int, int], host: str | None
) -> OpBatch:
    """The step as a batch with the step's number, so that sending it again has no effect.

    A step that cannot be used becomes a batch without operations, so that no consumer waits for it.

    Raises:
        InvalidRequest: the step is out of the run's range.
    """
    first = first_step_of_run(job)
    if (
        FIRST_STEP not in job.labels
        and job.last_step is None
        and step.number > MAX_UNREGISTERED_STEPS
    ):
        raise InvalidRequest(
            f"step {step.number} is the first to come, and the job is registered without the label "
            f"{FIRST_STEP}: register its run with the number of its first step"
        )
    if step.number < first:
        raise InvalidRequest(f"step {step.number} is before {first}, the first of this run")
    batch = OpBatch(
        epoch=job.epoch,
        rank=rank,
        dp_rank=place[0],
        stage=place[1],
        host=host,
        batch_seq=step.number - first,
        steps_done=(),
        columns=_step_columns(step, job),
    )
    num_ops = batch.columns.num_ops
    rules = RowRules(job.parallelism, job.op_types, job.last_step)
    if step.number > rules.last_step_taken or not are_all_valid(batch.columns, rules):
        raise InvalidRequest(
            f"step {step.number} has numbers out of range: check paceline.vpp_size, "
            "model chunks and micro-batches"
        )
    return replace(batch, steps_done=((step.number, num_ops),) if num_ops else ())


def why_step_unusable(step: RankStep) -> str:
    """Why the step cannot be analysed; "" if it can."""
    if step.broken:
        return f"step {step.number} {step.broken}"
    if unnumbered := step.counts["unnumbered"]:
        return (
            f"step {step.number}: {unnumbered} of {step.counts['compute']} passes belong to one of "
            "several model chunks and do not say to which: set the span attribute "
            "paceline.model_chunk"
        )
    return ""


def _step_columns(step: RankStep, job: JobRecord) -> OpColumns:
    ops = [] if why_step_unusable(step) else step.ops
    names = ("start_ns", "duration_ns", "seq_id", "mc", "mb_id")
    return OpColumns(
        step=np.full(len(ops), step.number, np.int64),
        optype=np.array([job.op_types.codes[op.optype] for op in ops], np.int16),
        **{name: np.array([getattr(op, name) for op in ops], np.int64) for name in names},
    )
