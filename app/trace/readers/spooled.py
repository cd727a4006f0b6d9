"""The part of an import that all formats of operations share: read once, then handed out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.errors import InvalidRequest, InvalidTrace
from app.trace.job import Parallelism
from app.trace.ops import OpTypes
from app.trace.readers.foreign import (
    MAX_CHUNK_ROWS,
    Described,
    Lack,
    Options,
    Place,
    RankRows,
)
from app.trace.readers.general_lacks import general_lacks, microbatch_lacks
from app.trace.readers.merging import Rows
from app.trace.readers.numbering import in_order, number, number_microbatches
from app.trace.readers.op_spool import OpSpool, Spooled


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader has learnt beside the operations.

    `sizes` are those that the files name. `has_clock`: starts are nanoseconds since 1970.
    `holds_seconds`: starts and durations are float64 seconds, their bits put as integers.
    `numbers_microbatches`: computations without a micro-batch get one by their order, unless the
    schedule `is_interleaved` and chunks are not told apart.
    `op_types` are the caller's where they are left out.
    """

    lacks: Sequence[Lack] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    name: str | None = None
    run_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    op_types: OpTypes | None = None
    has_clock: bool = True
    holds_seconds: bool = False
    numbers_microbatches: bool = False
    is_interleaved: bool = False


class _Read(NamedTuple):
    """What reading has left."""

    facts: Facts
    spooled: Spooled
    described: Described
    numbers_microbatches: bool
    hides_chunks: bool


class SpooledImport(ABC):
    """An import whose format only says how its files are read into a spool."""

    def __init__(self, paths: Sequence[Path], options: Options) -> None:
        self.paths = tuple(paths)
        self.options = options
        self._spool: OpSpool | None = None
        self._done: _Read | None = None

    def more_columns(self) -> tuple[str, ...]:
        """Columns that its operations have beside the usual ones, of `window.OPTIONAL` or gmc."""
        return ()

    @abstractmethod
    def read(self, spool: OpSpool) -> Facts:
        """Put every operation into the spool, with every rank's place; say what is known."""

    def describe(self) -> Described:
        """What is in the files; reads them the first time."""
        return self._read().described

    def chunks(self) -> Iterator[RankRows]:
        """The rows, step by step, and within a step rank by rank."""
        done = self._read()
        for rank, step, rows in self._groups(done.spooled):
            ordered = self._numbered(done, rank, step, rows)
            for begin in range(0, ordered.size, MAX_CHUNK_ROWS):
                yield _chunk(done, rank, step, ordered[begin : begin + MAX_CHUNK_ROWS])

    def close(self) -> None:
        """Give back what was kept on disk."""
        if self._spool is not None:
            self._spool.close()

    def _read(self) -> _Read:
        if self._done is None:
            more = self.more_columns()
            self._spool = OpSpool(self._files, more=more, folder=self.options.spool_dir)
            facts = self.read(self._spool)
            self._done = self._described(facts, self._spool)
        return self._done

    def _described(self, facts: Facts, spool: OpSpool) -> _Read:
        try:
            spooled = spool.finish()
        except InvalidTrace as error:
            raise InvalidTrace(f"{self._files()}: {error}") from error
        if not spooled.num_ops:
            raise InvalidTrace(
                f"{self._files()}: no operation of a training step is there: record at least one "
                "step, or say with --map which names are operations"
            )
        sizes = self._sizes(facts, spooled.places, max(spool.highest_chunk, 0))
        lacks = [*facts.lacks, *general_lacks(spool, spooled, sizes)]
        is_interleaved = facts.is_interleaved or sizes.vpp_size > 1
        hides_chunks = facts.numbers_microbatches and is_interleaved and spool.highest_chunk <= 0
        is_numbering = facts.numbers_microbatches and not hides_chunks
        if facts.numbers_microbatches:
            lacks += microbatch_lacks(spool, sizes, is_numbering)
        described = Described(
            name=self.options.name or facts.name,
            parallelism=sizes,
            places=spooled.places,
            num_ops=spooled.num_ops,
            steps=spooled.steps,
            lacks=tuple(lacks),
            op_types=facts.op_types or self.options.op_types,
            run_key=facts.run_key,
            origin_ns=spooled.first_starts if facts.has_clock else None,
            labels=facts.labels,
            more=spool.more,
        )
        return _Read(facts, spooled, described, is_numbering, hides_chunks)

    def _sizes(self, facts: Facts, places: Mapping[int, Place], highest_chunk: int) -> Parallelism:
        """Sizes as given, or as the files name them, or as seen in them."""
        seen = {
            "dp_size": max(place.dp_rank for place in places.values()) + 1,
            "pp_size": max(place.stage for place in places.values()) + 1,
        }
        told = {**seen, "vpp_size": highest_chunk + 1, **facts.sizes, **self.options.sizes}
        for size, word in (("dp_size", "dp_rank"), ("pp_size", "stage")):
            highest = seen[size] - 1
            if told[size] <= highest:
                rank = next(r for r, place in places.items() if getattr(place, word) == highest)
                raise InvalidTrace(
                    f"{self._files()}: {size} is {told[size]}, but rank {rank} has {word} "
                    f"{highest}: correct the sizes"
                )
        try:
            return Parallelism(**told)
        except InvalidRequest as error:
            raise InvalidTrace(f"{self._files()}: {error}") from error

    def _groups(self, spooled: Spooled) -> Iterator[tuple[int, int, Rows]]:
        try:
            yield from spooled.groups()
        except InvalidTrace as error:
            raise InvalidTrace(f"{self._files()}: {error}") from error

    def _numbered(self, done: _Read, rank: int, step: int, rows: Rows) -> Rows:
        ordered = in_order(rows, holds_seconds=done.facts.holds_seconds)
        try:
            number(ordered, done.described.op_types)
        except InvalidTrace as error:
            raise InvalidTrace(f"{self._files()}: rank {rank}, step {step}: {error}") from error
        if done.numbers_microbatches:
            number_microbatches(ordered)
        if done.hides_chunks:
            ordered["mc"] = -1
        return ordered

    def _files(self) -> str:
        """The files' names, for a message about all of them."""
        names = [path.name for path in self.paths]
        return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _chunk(done: _Read, rank: int, step: int, rows: Rows) -> RankRows:
    place = done.described.places[rank]
    start, duration, seconds = rows["start_ns"].copy(), rows["duration_ns"].copy(), None
    if done.facts.holds_seconds:
        seconds = (start.view(np.float64), duration.view(np.float64))
        start, duration = (np.rint(each * 1e9).astype(np.int64) for each in seconds)
    return RankRows(
        rank=rank,
        dp_rank=place.dp_rank,
        stage=place.stage,
        host=place.host,
        step=np.full(rows.size, step, np.int64),
        optype=rows["optype"],
        start_ns=start,
        duration_ns=duration,
        seq_id=rows["seq_id"],
        mc=rows["mc"],
        mb_id=rows["mb_id"],
        more={name: rows[name] for name in done.described.more},
        seconds=seconds,
    )
