"""OTLP traces in files, with Megatron-LM's span names: host-side times of every rank.

Spans are measured on the host, so an imported job is labelled `times: host`. Importing a file is
how its owner says that host times are to be analysed all the same. What the traces do not say is
counted, with the figures that suffer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from app.errors import InvalidRequest, InvalidTrace
from app.trace.job import Parallelism
from app.trace.readers.importing import HOST_TIMES, ImportOptions, MissingData, OperationImport
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.otlp.files import spans_in_file
from app.trace.readers.otlp.sample import sample
from app.trace.readers.otlp.spans import OtlpSender, SentSpans, sender_of
from app.trace.readers.otlp.steps import FORWARD, TRANSFERS, RankStep, SpanNames, WaitingSpans
from app.trace.readers.spooled_import import ImportFacts, SpooledImport

_HOST_TIMES_COST = (
    "host-side durations are launch and CPU time unless the script synchronises CUDA: figures "
    "show where the host spent its time, which GPU is slow only as far as the host waited for it"
)


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
    counts: dict[str, int] = field(
        default_factory=lambda: {"compute": 0, "by_order": 0, "unnumbered": 0, "p2p": 0}
    )

    def note(self, sent: SentSpans) -> None:
        """Count one resource's spans."""
        self.spans += sent.num_spans
        self.refused += sent.num_refused
        self.why_refused = self.why_refused or sent.refused

    def add(self, step: RankStep) -> None:
        """Count one step of one rank."""
        self.steps += 1
        self.broken += bool(step.broken)
        self.why_broken = self.why_broken or (step.broken and f"step {step.number} {step.broken}")
        self.ops += len(step.ops)
        for name in self.counts:
            self.counts[name] += step.counts[name]
        self.highest_chunk = max([self.highest_chunk, *(op.mc for op in step.ops)])


def missing_span_data(tally: OtlpCounts) -> tuple[MissingData, ...]:
    """Missing data, in words."""
    counts = tally.counts
    told = [
        (
            tally.ops,
            f"GPU times: all {tally.ops:,} operations are timed on the host (times=host)",
            _HOST_TIMES_COST,
        ),
        (
            counts["by_order"],
            f"micro-batch ids: {counts['by_order']:,} of {counts['compute']:,} forward and "
            "backward passes have none, and were numbered by their order",
            "right where a stage has one model chunk, as these have; a replay joins passes by it",
        ),
        (
            counts["unnumbered"],
            f"micro-batch and chunk ids: {counts['unnumbered']:,} of {counts['compute']:,} passes "
            "belong to one of several chunks of a stage and do not say to which: not numbered",
            "which pass waits for which is not known, so what-if figures of stages are too low; "
            "say chunks with the span attribute paceline.model_chunk",
        ),
        (
            0 if tally.keeps_transfers else 1,
            f"transfers: {_transfers(tally)}",
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
    ]
    return tuple(MissingData(what, cost) for count, what, cost in told if count)


def _transfers(tally: OtlpCounts) -> str:
    found = tally.counts["p2p"]
    if not found:
        return "none recorded between stages"
    return (
        f"{found:,} recorded for {tally.counts['compute']:,} passes, fewer than these need "
        "(Megatron records none while it overlaps sending and receiving): all left out"
    )


NAME = "otlp"
__all__ = ["NAME", "open_files", "sample"]
_MOVED = ("optype", "mc", "mb_id", "seq_id", "start_ns", "duration_ns")
MAX_WAITING = 1_000_000  # spans in memory, some 250 bytes each
# A rank's spans are cut into steps again once there are so many times those that were left over.
_GROWTH_BETWEEN_CUTS = 1.5


class OtlpImport(SpooledImport):
    """OTLP trace files, opened."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = SpanNames(options.patterns)
        self._places: dict[int, tuple[int, int]] = {}
        self._ranks: dict[int, WaitingSpans] = {}
        self._left_over: dict[int, int] = {}  # spans in no complete step at the last look, by rank
        self._tally = OtlpCounts()
        self._waiting = 0
        self._where = paths[0].name
        self._run: tuple[str | None, str | None] = (None, None)  # job, run key
        self._sizes_told: dict[str, int] = {}
        self._sizes_now: Parallelism | None = None

    def read(self, spool: OpSpool) -> ImportFacts:
        """Spool every operation; transfers only where none is missing."""
        spool.at = lambda: self._where
        transfers = OpSpool(spool.at, folder=self.options.spool_dir)
        try:
            self._tally.keeps_transfers = self._fill(spool, transfers)
            if self._tally.keeps_transfers and self._tally.counts["p2p"]:
                _move(transfers, spool)
        finally:
            transfers.close()
        sizes = dict(self._sizes_told)
        if self._tally.highest_chunk:
            sizes["vpp_size"] = max(sizes.get("vpp_size", 1), self._tally.highest_chunk + 1)
        job, run_key = self._run
        return ImportFacts(
            missing_span_data(self._tally), sizes, name=job, run_key=run_key, labels=HOST_TIMES
        )

    def _fill(self, spool: OpSpool, transfers: OpSpool) -> bool:
        """Whether the sends and receives of each micro-batch are recorded."""
        has_all, codes = True, self.options.op_types.codes
        for rank, step in self._steps(spool, transfers):
            stage = self._places[rank][1]
            has_all = has_all and _has_all_transfers(step, stage, self._sizes_told["pp_size"])
            for op in step.ops:
                if op.optype in TRANSFERS and not has_all:
                    continue
                (transfers if op.optype in TRANSFERS else spool).add(
                    rank,
                    step.number,
                    codes[op.optype],
                    op.start_ns,
                    op.duration_ns,
                    op.mc,
                    op.mb_id,
                    op.seq_id,
                )
        return has_all

    def _steps(self, *spools: OpSpool) -> Iterator[tuple[int, RankStep]]:
        """Every rank's steps, in the order of their ends in the files."""
        for path in self.paths:
            self._where = path.name
            for where, sent in spans_in_file(path, self._names.wants):
                self._where = where
                self._tally.note(sent)
                if sent.spans and (rank := self._placed(sent, spools)) is not None:
                    yield from self._taken(rank, sent)
        for rank in self._ranks:
            yield from self._ready(rank, is_end=True)
            self._tally.outside += len(self._ranks[rank].spans)

    def _taken(self, rank: int, sent: SentSpans) -> Iterator[tuple[int, RankStep]]:
        waiting = self._ranks.setdefault(rank, WaitingSpans())
        before, has_mark = len(waiting.spans), False
        for span in sent.spans:
            has_mark |= self._names.is_step(span)
            self._tally.outside += not waiting.add(self._names.renamed(span))
        self._waiting += len(waiting.spans) - before
        # Spans that never become a step would else be sorted again for each mark that comes.
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
            self._tally.add(step)
            if not step.broken:
                yield rank, step

    def _placed(self, sent: SentSpans, spools: Sequence[OpSpool]) -> int | None:
        """The sender's global rank once its place is known; None for a peer."""
        try:
            sender = sender_of(sent.attributes)
            sizes = self._sizes_of(sender)
            dp_rank, stage, peer = sender.place(sizes)
        except InvalidRequest as error:
            raise InvalidTrace(f"{self._where}: {error}") from error
        self._is_of_one_run(sender)
        rank = sizes.usual_rank(dp_rank, stage) if sender.rank is None else sender.rank
        for spool in spools:
            spool.place(rank, dp_rank, stage, peer=peer, host=sender.host)
        self._places[rank] = dp_rank, stage
        return rank if peer == 0 else None

    def _sizes_of(self, sender: OtlpSender) -> Parallelism:
        told = {**sender.sizes, **self.options.sizes}
        if not {"dp_size", "pp_size"} <= told.keys():
            raise InvalidTrace(
                f"{self._where}: the resource has no dl.data_parallel.size and "
                "dl.pipeline_parallel.size: say them with --dp and --pp"
            )
        if self._sizes_told and told != self._sizes_told:
            raise InvalidTrace(
                f"{self._where}: the resource names other parallel sizes than those before: give "
                "the files of one run"
            )
        if self._sizes_now is None:
            self._sizes_told, self._sizes_now = told, Parallelism(**told)
        return self._sizes_now

    def _is_of_one_run(self, sender: OtlpSender) -> None:
        run = (sender.job, sender.run_key)
        if self._run != (None, None) and run != self._run:
            raise InvalidTrace(
                f"{self._where}: is of run {str(run[1])[:60]!r}, spans before were of "
                f"{str(self._run[1])[:60]!r}: import one run at a time"
            )
        self._run = run


def _move(source: OpSpool, to: OpSpool) -> None:
    """Copy all rows of one spool into another."""
    for rank, step, rows in source.finish().groups():
        to.add_rows(
            np.full(rows.size, rank, np.int64),
            np.full(rows.size, step, np.int64),
            **{name: rows[name] for name in _MOVED},
        )


def _has_all_transfers(step: RankStep, stage: int, pp_size: int) -> bool:
    """Whether this stage has the sends and receives of each micro-batch."""
    found = Counter(op.optype for op in step.ops)
    is_first, is_last = stage == 0, stage == pp_size - 1
    wanted: Mapping[str, bool] = {
        "forward-recv": not is_first,
        "backward-send": not is_first,
        "forward-send": not is_last,
        "backward-recv": not is_last,
    }
    return not step.counts["unnumbered"] and all(
        found[optype] == found[FORWARD] * is_there for optype, is_there in wanted.items()
    )


def open_files(paths: Sequence[Path], options: ImportOptions) -> OperationImport:
    """The import of one run's files."""
    return OtlpImport(paths, options)
