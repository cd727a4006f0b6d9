"""The part of an import that all formats of operations share.

Operations without a `seq_id` or a micro-batch are numbered by their starts within step and rank.
Data that the files lack is counted as `MissingData`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.errors import InvalidRequest, InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, OpTypes
from app.trace.readers.disk_rows import Rows
from app.trace.readers.importing import (
    MAX_CHUNK_ROWS,
    ImportOptions,
    ImportSummary,
    MissingData,
    RankRows,
    WorkerPlace,
    missing_data,
)
from app.trace.readers.op_spool import OpSpool
from app.trace.window import Ints

NUMBERED_TYPES = [
    OP_CODES[name]
    for name in (
        "forward-compute",
        "backward-compute",
        "backward-input-compute",
        "backward-weight-compute",
    )
]
_IDENTITY_COLUMNS = ("optype", "mc", "mb_id", "start_ns", "duration_ns")


def number_operations(rows: Rows, op_types: OpTypes) -> None:
    """Give rows in order of start their `seq_id`, unless the files have it.

    Raises:
        InvalidTrace: an operation was read twice.
    """
    if (rows["seq_id"] < 0).any():
        _refuse_same_times(rows, op_types)
        rows["seq_id"] = _count_within(rows["optype"].astype(np.int64))
        return
    key = np.sort(rows["optype"].astype(np.int64) << 32 | rows["seq_id"])
    duplicates = np.flatnonzero(key[1:] == key[:-1])
    if duplicates.size:
        _refuse_duplicates(op_types.name(int(key[duplicates[0]] >> 32)), duplicates.size)


def number_microbatches(rows: Rows) -> None:
    """Number computations without a micro-batch by their order within their model chunk."""
    is_numbered = np.isin(rows["optype"], NUMBERED_TYPES) & (rows["mb_id"] < 0)
    key = rows["optype"].astype(np.int64) << 16 | (rows["mc"] + 1)
    rows["mb_id"] = np.where(is_numbered, _count_within(key), rows["mb_id"])


def _refuse_same_times(rows: Rows, op_types: OpTypes) -> None:
    # Two equal operations of a worker cannot have the same start and duration. Durations of 0 are
    # exempt, since a coarse clock gives equal times to different operations.
    ordered = rows[np.lexsort([rows[name] for name in _IDENTITY_COLUMNS])]
    same = ordered["duration_ns"][1:] > 0
    for name in _IDENTITY_COLUMNS:
        same &= ordered[name][1:] == ordered[name][:-1]
    if same.any():
        _refuse_duplicates(op_types.name(int(ordered["optype"][1:][same][0])), int(same.sum()))


def _refuse_duplicates(name: str, count: int) -> None:
    are = "operation is" if count == 1 else "operations are"
    raise InvalidTrace(f"{count:,} {are} there twice, {name} first: give each file once")


def _count_within(key: Ints) -> Ints:
    """[rows], how many earlier rows have the same key."""
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=key[order[0]] - 1))
    lengths = np.diff(begins, append=key.size)
    count = np.empty(key.size, np.int64)
    count[order] = np.arange(key.size) - np.repeat(begins, lengths)
    return count


def missing_operation_data(spool: OpSpool, sizes: Parallelism) -> list[MissingData]:
    """The missing data that imports of all formats report."""
    missing = sizes.num_workers - len(spool.places)
    num_computations = int(spool.num_by_type[NUMBERED_TYPES].sum())
    return missing_data(
        (
            missing,
            f"workers: {missing:,} of {sizes.num_workers:,} (dp rank, stage) pairs are in no "
            f"file, the first {_first_missing(spool.places, sizes)}",
            "a step is analysed only where every worker recorded it: give the files of all "
            "workers, or the sizes of what was recorded",
        ),
        (
            spool.num_peers,
            f"peers: {spool.num_peers:,} ranks do the same work as another (tensor- or "
            f"sequence-parallel); their {spool.num_peer_ops:,} operations are left out",
            "a peer that is slower than the one that is kept is not seen",
        ),
        (
            not spool.num_by_type[OP_CODES["optimizer"]],
            f"optimizer: none among {int(spool.num_by_type.sum()):,} operations",
            "a step ends with its latest operation in place of its optimizer",
        ),
        (
            num_computations and "seq_len_sq" not in spool.more,
            f"sequence lengths: none of {num_computations:,} computations has its tokens",
            "that long sequences are the cause can only be told from durations",
        ),
    )


def _first_missing(places: Mapping[int, WorkerPlace], sizes: Parallelism) -> str:
    recorded = {(place.dp_rank, place.stage) for place in places.values()}
    workers = (divmod(number, sizes.pp_size) for number in range(sizes.num_workers))
    return next(("dp_rank {}, stage {}".format(*w) for w in workers if w not in recorded), "")


def missing_microbatch_data(
    spool: OpSpool, sizes: Parallelism, is_numbering: bool
) -> list[MissingData]:
    """The missing micro-batches of computations."""
    without = int(spool.num_without_mb[NUMBERED_TYPES].sum())
    total = int(spool.num_by_type[NUMBERED_TYPES].sum())
    what = f"micro-batch ids: {without:,} of {total:,} computations have none"
    return missing_data(
        (
            without if is_numbering else 0,
            f"{what} and are numbered by their starts",
            "right for GPipe and 1F1B; where a schedule takes micro-batches in another order, "
            "figures by micro-batch are of the wrong ones, slowdowns are not affected",
        ),
        (
            0 if is_numbering else without,
            f"{what}, and the chunks of an interleaved schedule are not told apart",
            "their order is not guessed: where a stage has several chunks, what-ifs need the chunk "
            "of every computation and refuse its steps",
        ),
    )


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What the files say about the run.

    `sizes` may be incomplete. `has_clock`: starts are nanoseconds since 1970. `holds_seconds`:
    starts and durations are the bits of float64 seconds. `numbers_microbatches`: computations
    without a micro-batch are numbered by their order, unless the schedule `is_interleaved` and the
    chunks are unknown. `op_types`: by default the caller's.
    """

    missing: Sequence[MissingData] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    name: str | None = None
    run_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    op_types: OpTypes | None = None
    has_clock: bool = True
    holds_seconds: bool = False
    numbers_microbatches: bool = False
    is_interleaved: bool = False


class _SpooledRead(NamedTuple):
    """The result of reading; with `hides_chunks` the files' chunks are not used."""

    facts: ImportFacts
    spool: OpSpool
    described: ImportSummary
    numbers_microbatches: bool
    hides_chunks: bool


class SpooledImport(ABC):
    """Base class of imports; a format implements `read`, which fills a spool."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        self.paths = tuple(paths)
        self.options = options
        self._spool: OpSpool | None = None

    def more_columns(self) -> tuple[str, ...]:
        """The additional columns of its operations, of `window.OPTIONAL` or gmc."""
        return ()

    @abstractmethod
    def read(self, spool: OpSpool) -> ImportFacts:
        """Add all operations and ranks to the spool; returns the facts about the run."""

    def describe(self) -> ImportSummary:
        """Summary of the files; the first call reads them."""
        return self._done.described

    def chunks(self) -> Iterator[RankRows]:
        """The rows, step by step, and within a step rank by rank."""
        done = self._done
        for rank, step, rows in self._groups(done.spool):
            ordered = self._numbered(done, rank, step, rows)
            for begin in range(0, ordered.size, MAX_CHUNK_ROWS):
                yield _chunk(done, rank, step, ordered[begin : begin + MAX_CHUNK_ROWS])

    def close(self) -> None:
        """Free the disk space."""
        if self._spool is not None:
            self._spool.close()

    @cached_property
    def _done(self) -> _SpooledRead:
        more = self.more_columns()
        self._spool = spool = OpSpool(self._files, more=more, folder=self.options.spool_dir)
        facts = self.read(spool)
        with self._named():
            spool.finish()
        if not spool.num_ops:
            raise InvalidTrace(
                f"{self._files()}: no operation of a training step is there: record at least one "
                "step, or say with --map which names are operations"
            )
        sizes = self._sizes(facts, spool.places, max(spool.highest_chunk, 0))
        missing = [*facts.missing, *missing_operation_data(spool, sizes)]
        is_interleaved = facts.is_interleaved or sizes.vpp_size > 1
        hides_chunks = facts.numbers_microbatches and is_interleaved and spool.highest_chunk <= 0
        is_numbering = facts.numbers_microbatches and not hides_chunks
        if facts.numbers_microbatches:
            missing += missing_microbatch_data(spool, sizes, is_numbering)
        described = ImportSummary(
            name=self.options.name or facts.name,
            parallelism=sizes,
            places=spool.places,
            num_ops=spool.num_ops,
            steps=spool.steps,
            missing=tuple(missing),
            op_types=facts.op_types or self.options.op_types,
            run_key=facts.run_key,
            origin_ns=spool.first_starts if facts.has_clock else None,
            labels=facts.labels,
            more=spool.more,
        )
        return _SpooledRead(facts, spool, described, is_numbering, hides_chunks)

    def _sizes(
        self, facts: ImportFacts, places: Mapping[int, WorkerPlace], highest_chunk: int
    ) -> Parallelism:
        """Sizes by the options, else by the files, else inferred from the ranks."""
        sizes = {"vpp_size": highest_chunk + 1, **facts.sizes, **self.options.sizes}
        for size, word in (("dp_size", "dp_rank"), ("pp_size", "stage")):
            highest = max(getattr(place, word) for place in places.values())
            if sizes.setdefault(size, highest + 1) <= highest:
                rank = next(r for r, place in places.items() if getattr(place, word) == highest)
                raise InvalidTrace(
                    f"{self._files()}: {size} is {sizes[size]}, but rank {rank} has {word} "
                    f"{highest}: correct the sizes"
                )
        with self._named(InvalidRequest):
            return Parallelism(**sizes)

    def _groups(self, spool: OpSpool) -> Iterator[tuple[int, int, Rows]]:
        with self._named():
            yield from spool.groups()

    def _numbered(self, done: _SpooledRead, rank: int, step: int, rows: Rows) -> Rows:
        """A copy of one rank's rows of a step, in order of start, with all numbers."""
        starts = rows["start_ns"].view(np.float64) if done.facts.holds_seconds else rows["start_ns"]
        ordered = rows[np.argsort(starts, kind="stable")]
        with self._named(where=f"rank {rank}, step {step}: "):
            number_operations(ordered, done.described.op_types)
        if done.numbers_microbatches:
            number_microbatches(ordered)
        if done.hides_chunks:
            ordered["mc"] = -1
        return ordered

    @contextmanager
    def _named(
        self, refusal: type[InvalidRequest] = InvalidTrace, where: str = ""
    ) -> Iterator[None]:
        """Errors of the block name the files."""
        try:
            yield
        except refusal as error:
            raise InvalidTrace(f"{self._files()}: {where}{error}") from error

    def _files(self) -> str:
        """The files' names, for a message about all of them."""
        names = [path.name for path in self.paths]
        return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _chunk(done: _SpooledRead, rank: int, step: int, rows: Rows) -> RankRows:
    place = done.described.places[rank]
    start, duration, seconds = rows["start_ns"].copy(), rows["duration_ns"].copy(), None
    if done.facts.holds_seconds:
        seconds = (start.view(np.float64), duration.view(np.float64))
        start, duration = (np.rint(times_s * 1e9).astype(np.int64) for times_s in seconds)
    return RankRows(
        rank=rank,
        dp_rank=place.dp_rank,
        stage=place.stage,
        host=place.host,
        step=np.full(rows.size, step, np.int64),
        start_ns=start,
        duration_ns=duration,
        **{name: rows[name] for name in ("optype", "seq_id", "mc", "mb_id")},
        more={name: rows[name] for name in done.described.more},
        seconds=seconds,
    )
