"""Imports files of OTLP traces with Megatron-LM's span names: host-side times of every rank.

Files are successive trace requests in JSON or protobuf, as the OpenTelemetry collector's file
exporter writes them, or the body of a single request. Only one resource's spans (JSON) or one
request (protobuf) are in memory at a time.

Spans are measured on the host, so an imported job is labelled `times: host`. It is analysed without
the opt-in that pushed spans need, since a user who imports a file asks for the analysis. Missing
data is counted, with its consequence for the figures.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from app.errors import BadRequest, InvalidRequest, InvalidTrace, TooLarge
from app.trace.job import Parallelism
from app.trace.readers.importing import HOST_TIMES, ImportOptions, MissingData, missing_data
from app.trace.readers.json_stream import InputFile, JsonStream
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.otlp import messages
from app.trace.readers.otlp.spans import NameWanted, OtlpSender, SentSpans, sender_of
from app.trace.readers.otlp.steps import (
    FORWARD,
    STEP_SPAN,
    TRANSFERS,
    RankStep,
    SpanNames,
    WaitingSpans,
)
from app.trace.readers.spooled_import import ImportFacts, SpooledImport

MAX_MESSAGE_BYTES = 32 << 20
_LENGTH_BYTES = 4  # big-endian, before each message of the collector's protobuf files
_REQUEST_TAG = b"\x0a"  # of field 1; as the first byte of a length it would mean over 160 MB
_BLANK = b" \t\r\n"
_ELEMENTS = msgspec.json.Decoder(list[messages.ResourceSpans])
_WANTED_FORMAT = (
    "want OTLP traces: requests in JSON, or protobuf messages with their lengths before them"
)


ResourceInFile = tuple[str, SentSpans]  # the place in the file, and the spans of the resource


def spans_in_file(path: Path, wanted: NameWanted) -> Iterator[ResourceInFile]:
    """A file's spans, by resource; raises InvalidTrace if it cannot be read or parsed."""
    file = _PeekableFile(path)
    try:
        first, visible = file.begins_with()
        if not visible:
            raise InvalidTrace(f"{path.name}: is empty: {_WANTED_FORMAT}")
        if visible == b"{":
            yield from _in_json(file, wanted)
        elif first == _REQUEST_TAG:
            yield from _in_message(path.name, file.take(MAX_MESSAGE_BYTES + 1), wanted)
        else:
            yield from _in_protobuf(path.name, file, wanted)
    finally:
        file.close()


def _in_json(file: "_PeekableFile", wanted: NameWanted) -> Iterator[ResourceInFile]:
    """One request a line, or JSON documents of any size if the first line is no request."""
    number, line = 1, file.line(MAX_MESSAGE_BYTES)
    while line:
        where = f"{file.name}: line {number:,}"
        if number > 1 and len(line) > MAX_MESSAGE_BYTES:
            raise InvalidTrace(f"{where}: is longer than 32 MiB: write shorter requests")
        try:
            is_request = number == 1 or line.strip(_BLANK)
            resources = messages.read_json(line, wanted) if is_request else []
        except (BadRequest, TooLarge) as error:
            if number > 1:
                raise InvalidTrace(f"{where}: {error}") from error
            file.put_back(line)
            yield from _in_documents(JsonStream(file, noun="resource"), wanted)
            return
        yield from ((where, sent) for sent in resources)
        number, line = number + 1, file.line(MAX_MESSAGE_BYTES)


def _in_documents(stream: JsonStream, wanted: NameWanted) -> Iterator[ResourceInFile]:
    while stream.peek():
        for key in stream.members():
            if key != "resourceSpans" or stream.peek() != b"[":
                stream.skip()
                continue
            for element in stream.elements(_ELEMENTS):
                try:
                    sent = messages.sent_of(element, wanted)
                except TooLarge as error:
                    raise stream.refusal(str(error)) from error
                yield stream.place(), sent


def _in_protobuf(name: str, file: "_PeekableFile", wanted: NameWanted) -> Iterator[ResourceInFile]:
    number = 1
    while length := file.take(_LENGTH_BYTES):
        where, size = f"{name}: message {number:,}", int.from_bytes(length, "big")
        if len(length) < _LENGTH_BYTES or size > MAX_MESSAGE_BYTES:
            raise InvalidTrace(f"{where}: {_WANTED_FORMAT}, each of at most 32 MiB")
        body = file.take(size)
        if len(body) < size:
            raise InvalidTrace(f"{where}: ends after {len(body)} of {size} bytes: copy it again")
        yield from _in_message(where, body, wanted)
        number += 1


def _in_message(where: str, body: bytes, wanted: NameWanted) -> Iterator[ResourceInFile]:
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidTrace(f"{where}: {_WANTED_FORMAT}, each of at most 32 MiB")
    try:
        yield from [(where, sent) for sent in messages.read_protobuf(body, wanted)]
    except (BadRequest, TooLarge) as error:
        raise InvalidTrace(f"{where}: {error}") from error


class _PeekableFile(InputFile):
    """A file with look-ahead."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ahead = b""

    def read(self) -> bytes:
        """The next piece; empty at the end."""
        if not self._ahead:
            return super().read()
        piece, self._ahead = self._ahead, b""
        return piece

    def begins_with(self) -> tuple[bytes, bytes]:
        """The first byte, and the first one that is not blank; empty at the end."""
        self._ahead = super().read()
        first = self._ahead[:1]
        while self._ahead and not self._ahead.strip(_BLANK):
            self._ahead = super().read()
        return first, self._ahead.lstrip(_BLANK)[:1]

    def take(self, size: int) -> bytes:
        """So many bytes, or fewer at the end of the file."""
        pieces, missing = [], size
        while missing and (piece := self.read()):
            pieces.append(piece[:missing])
            self._ahead = piece[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def line(self, most: int) -> bytes:
        """The bytes up to the next line end, at most `most` + 1 of them."""
        pieces, left = [], most + 1
        while left and (piece := self.read()):
            end = piece.find(b"\n", 0, left) + 1
            size = end or min(left, len(piece))
            pieces.append(piece[:size])
            self._ahead = piece[size:]
            left = 0 if end else left - size
        return b"".join(pieces)

    def put_back(self, piece: bytes) -> None:
        """Put bytes back, to be read next."""
        self._ahead = piece + self._ahead


@dataclass(slots=True)
class OtlpCounts:
    """Counts of spans and operations over all files."""

    spans: int = 0
    refused: int = 0
    why_refused: str = ""
    outside: int = 0
    steps: int = 0
    broken: int = 0
    why_broken: str = ""
    ops: int = 0
    highest_chunk: int = 0
    keeps_transfers: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def add_spans(self, sent: SentSpans) -> None:
        """Count the spans of a resource."""
        self.spans += sent.num_spans
        self.refused += sent.num_refused
        self.why_refused = self.why_refused or sent.refused

    def add_step(self, step: RankStep) -> None:
        """Count a step of a rank."""
        self.steps += 1
        self.broken += bool(step.broken)
        self.why_broken = self.why_broken or (step.broken and f"step {step.number} {step.broken}")
        self.ops += len(step.ops)
        self.counts.update(step.counts)
        self.highest_chunk = max([self.highest_chunk, *(op.mc for op in step.ops)])


def missing_span_data(tally: OtlpCounts) -> list[MissingData]:
    """The missing data by these counts."""
    compute, by_order, unnumbered, p2p = (
        tally.counts[name] for name in ("compute", "by_order", "unnumbered", "p2p")
    )
    transfers = "none recorded between stages"
    if p2p:
        transfers = (
            f"{p2p:,} recorded for {compute:,} passes, fewer than these need (Megatron records "
            "none while it overlaps sending and receiving): all left out"
        )
    return missing_data(
        (
            tally.ops,
            f"GPU times: all {tally.ops:,} operations are timed on the host (times=host)",
            "host-side durations are launch and CPU time unless the script synchronises CUDA: "
            "figures show where the host spent its time, which GPU is slow only as far as the host "
            "waited for it",
        ),
        (
            by_order,
            f"micro-batch ids: {by_order:,} of {compute:,} forward and backward passes have none, "
            "and were numbered by their order",
            "right where a stage has one model chunk, as these have; a replay joins passes by it",
        ),
        (
            unnumbered,
            f"micro-batch and chunk ids: {unnumbered:,} of {compute:,} passes belong to one of "
            "several chunks of a stage and do not say to which: not numbered",
            "which pass waits for which is not known, so what-if figures of stages are too low; "
            "say chunks with the span attribute paceline.model_chunk",
        ),
        (
            not tally.keeps_transfers,
            f"transfers: {transfers}",
            "no stage waits for another in the replay: the discrepancy between simulated and "
            "recorded step time shows how much that is, and no slow link can be found",
        ),
        (
            tally.broken,
            f"steps: {tally.broken:,} of {tally.steps:,} steps of ranks left out: "
            f"{tally.why_broken}",
            "a step is analysed only where all its workers recorded it",
        ),
        (
            tally.outside,
            f"spans: {tally.outside:,} of {tally.spans:,} lie in no megatron.train_step",
            "they are in no figure",
        ),
        (
            tally.refused,
            f"spans: {tally.refused:,} of {tally.spans:,} cannot be: {tally.why_refused}",
            "they are in no figure",
        ),
    )


_MOVED = ("optype", "mc", "mb_id", "seq_id", "start_ns", "duration_ns")
MAX_WAITING = 1_000_000  # spans in memory, some 250 bytes each
# Factor by which a rank's spans must grow before they are assigned to steps again.
_GROWTH_BETWEEN_CUTS = 1.5


class OtlpImport(SpooledImport):
    """An import of OTLP trace files."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = SpanNames(options.patterns)
        self._places: dict[int, tuple[int, int]] = {}
        self._ranks: dict[int, WaitingSpans] = {}
        self._left_over: dict[int, int] = {}  # by rank, its spans in no step at the last attempt
        self._tally = OtlpCounts()
        self._waiting = 0
        self._where = paths[0].name
        self._run: tuple[str | None, str | None] = (None, None)  # job, run key
        self._known_sizes: dict[str, int] = {}

    def read(self, spool: OpSpool) -> ImportFacts:
        """Spool every operation; transfers only if none of them is missing."""
        spool.at = lambda: self._where
        transfers = OpSpool(spool.at, folder=self.options.spool_dir)
        try:
            self._tally.keeps_transfers = self._fill(spool, transfers)
            if self._tally.keeps_transfers and self._tally.counts["p2p"]:
                _move(transfers, spool)
        finally:
            transfers.close()
        sizes = dict(self._known_sizes)
        if self._tally.highest_chunk:
            sizes["vpp_size"] = max(sizes.get("vpp_size", 1), self._tally.highest_chunk + 1)
        job, run_key = self._run
        return ImportFacts(
            missing_span_data(self._tally), sizes, name=job, run_key=run_key, labels=HOST_TIMES
        )

    def _fill(self, spool: OpSpool, transfers: OpSpool) -> bool:
        """Fill the spools; returns whether the transfers of all micro-batches are recorded."""
        has_all, codes = True, self.options.op_types.codes
        for rank, step in self._steps(spool, transfers):
            stage = self._places[rank][1]
            has_all = has_all and _has_all_transfers(step, stage, self._known_sizes["pp_size"])
            for op in step.ops:
                if op.optype in TRANSFERS and not has_all:
                    continue
                target = transfers if op.optype in TRANSFERS else spool
                times = op.start_ns, op.duration_ns
                numbers = op.mc, op.mb_id, op.seq_id
                target.add(rank, step.number, codes[op.optype], *times, *numbers)
        return has_all

    def _steps(self, *spools: OpSpool) -> Iterator[tuple[int, RankStep]]:
        """The complete steps of all ranks, in the order in which they end in the files."""
        for path in self.paths:
            self._where = path.name
            for where, sent in spans_in_file(path, self._names.wants):
                self._where = where
                self._tally.add_spans(sent)
                if sent.spans and (rank := self._rank_of(sent, spools)) is not None:
                    yield from self._steps_with(rank, sent)
        for rank in self._ranks:
            yield from self._ready(rank, is_end=True)
            self._tally.outside += len(self._ranks[rank].spans)

    def _steps_with(self, rank: int, sent: SentSpans) -> Iterator[tuple[int, RankStep]]:
        waiting = self._ranks.setdefault(rank, WaitingSpans())
        before, has_mark = len(waiting.spans), False
        for span in sent.spans:
            has_mark |= span.name == STEP_SPAN
            self._tally.outside += not waiting.add(self._names.renamed(span))
        self._waiting += len(waiting.spans) - before
        # Not at every mark: spans that belong to no step would be sorted again and again.
        if has_mark and len(waiting.spans) >= _GROWTH_BETWEEN_CUTS * self._left_over.get(rank, 0):
            yield from self._ready(rank)
        if self._waiting > MAX_WAITING:
            raise InvalidTrace(
                f"{self._where}: {self._waiting:,} spans are in no finished megatron.train_step: "
                "record with MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch, and keep the order in "
                "which spans were exported"
            )

    def _ready(self, rank: int, *, is_end: bool = False) -> Iterator[tuple[int, RankStep]]:
        waiting = self._ranks[rank]
        ready, before = waiting.ready(self._names.optypes, is_end=is_end), len(waiting.spans)
        self._tally.outside += waiting.done(ready)
        self._waiting -= before - len(waiting.spans)
        self._left_over[rank] = len(waiting.spans)
        for step in ready.steps:
            self._tally.add_step(step)
            if not step.broken:
                yield rank, step

    def _rank_of(self, sent: SentSpans, spools: Sequence[OpSpool]) -> int | None:
        """The sender's global rank, after a declaration of its place; None for a peer."""
        try:
            sender = sender_of(sent.attributes)
            sizes = self._sizes_of(sender)
            dp_rank, stage, peer = sender.place(sizes)
        except InvalidRequest as error:
            raise InvalidTrace(f"{self._where}: {error}") from error
        self._refuse_other_run(sender)
        rank = sizes.usual_rank(dp_rank, stage) if sender.rank is None else sender.rank
        for spool in spools:
            spool.place(rank, dp_rank, stage, peer=peer, host=sender.host)
        self._places[rank] = dp_rank, stage
        return rank if peer == 0 else None

    def _sizes_of(self, sender: OtlpSender) -> Parallelism:
        sizes = {**sender.sizes, **self.options.sizes}
        if not {"dp_size", "pp_size"} <= sizes.keys():
            raise InvalidTrace(
                f"{self._where}: the resource has no dl.data_parallel.size and "
                "dl.pipeline_parallel.size: say them with --dp and --pp"
            )
        if self._known_sizes and sizes != self._known_sizes:
            raise InvalidTrace(
                f"{self._where}: the resource names other parallel sizes than those before: give "
                "the files of one run"
            )
        self._known_sizes = sizes
        return Parallelism(**sizes)

    def _refuse_other_run(self, sender: OtlpSender) -> None:
        run = (sender.job, sender.run_key)
        if self._run != (None, None) and run != self._run:
            raise InvalidTrace(
                f"{self._where}: is of run {str(run[1])[:60]!r}, spans before were of "
                f"{str(self._run[1])[:60]!r}: import one run at a time"
            )
        self._run = run


def _move(source: OpSpool, to: OpSpool) -> None:
    """Copy all rows of a spool into another one."""
    for rank, step, rows in source.finish().groups():
        to.add_rows(
            np.full(rows.size, rank, np.int64),
            np.full(rows.size, step, np.int64),
            **{name: rows[name] for name in _MOVED},
        )


def _has_all_transfers(step: RankStep, stage: int, pp_size: int) -> bool:
    """Whether a stage's step has the sends and receives of all micro-batches."""
    num_ops = Counter(op.optype for op in step.ops)
    is_first, is_last = stage == 0, stage == pp_size - 1
    wanted: Mapping[str, bool] = {
        "forward-recv": not is_first,
        "backward-send": not is_first,
        "forward-send": not is_last,
        "backward-recv": not is_last,
    }
    return not step.counts["unnumbered"] and all(
        num_ops[optype] == num_ops[FORWARD] * is_wanted for optype, is_wanted in wanted.items()
    )
