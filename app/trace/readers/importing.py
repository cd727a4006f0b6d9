"""The interface of importers of foreign formats; to add one, see `registry`.

An importer of operations reads its files once, into an `OpSpool` (`spooled_import.SpooledImport`
does the rest), so that neither the files' size nor their order costs memory. `NameMap` maps names
in the files to operation types: the caller's patterns first, then known names.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import Floats, Integers, Ints

MAX_CHUNK_ROWS = 50_000
_MAX_NAMES = 50_000  # whose meaning is cached; a file with more has numbers in its names
_MAX_CACHED_CHARS = 200
_MAX_COUNTED = 1_000
_MAX_DIGITS = 15
_MAX_SHOWN = 5
_MAX_SHOWN_CHARS = 60
# Label of a job with host-side times only; the job's page shows it.
HOST_TIMES: Mapping[str, str] = {"times": "host"}


@dataclass(frozen=True, slots=True)
class MissingData:
    """Data that the source lacks, with a count, and the consequence for the figures: two lines."""

    what: str
    cost: str


def missing_data(*omitted: tuple[int, str, str]) -> list[MissingData]:
    """The records of those (count, what, cost) with a count above 0."""
    return [MissingData(what, cost) for count, what, cost in omitted if count]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The caller's options.

    `patterns` map names in the files to op types; the first match counts, and its groups `mb`,
    `chunk` and `step` are read as numbers. `sizes` have the names of `Parallelism`; other sizes are
    read from the files, or inferred. `name` is the job's.
    """

    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    op_types: OpTypes = BUILT_IN
    name: str | None = None
    meta: Path | None = None
    spool_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The position of a recorded rank in the job."""

    dp_rank: int
    stage: int
    host: str | None = None


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """Metadata of the files and counts of their operations.

    `places` has one global rank per (dp rank, stage). `steps` are ascending; `origin_ns` [steps] is
    the first start in a step by the hosts' own clocks, None where every step has a clock origin of
    its own. `run_key` identifies the run.
    """

    name: str | None
    parallelism: Parallelism
    places: Mapping[int, WorkerPlace]
    num_ops: int
    steps: Ints
    missing: tuple[MissingData, ...]
    op_types: OpTypes = BUILT_IN
    run_key: str | None = None
    origin_ns: Ints | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    @property
    def has_absolute_times(self) -> bool:
        """Whether starts are nanoseconds since 1970 by the hosts' own clocks."""
        return self.origin_ns is not None

    def job(self, name: str) -> Job:
        """The recorded job; it gets this name if the files have none."""
        return Job.of(self.name or name, self.parallelism, self.op_types)


@dataclass(frozen=True, slots=True)
class RankRows:
    """Operations of one rank, all [ops], at most `MAX_CHUNK_ROWS` of them.

    `optype` are codes of the job's types. `start_ns` counts from 1970, or from the beginning of the
    step where times are not absolute. -1 is no value in `mc`, `mb_id` and `more`: the columns of
    `window.OPTIONAL` that any rank has, and `gmc`. `seconds` are start and duration as they are in
    a file with seconds without a clock.
    """

    rank: int
    dp_rank: int
    stage: int
    host: str | None
    step: Ints
    optype: Integers
    start_ns: Ints
    duration_ns: Ints
    seq_id: Integers
    mc: Integers
    mb_id: Integers
    more: Mapping[str, Ints] = field(default_factory=dict)
    seconds: tuple[Floats, Floats] | None = None


class OperationImport(Protocol):
    """An import of one job's files.

    Raises (all methods):
        InvalidTrace: one line with the file, the place in it, and the remedy.
    """

    def describe(self) -> ImportSummary:
        """Read the files in bounded memory and summarise them; to be called before `chunks`."""

    def chunks(self) -> Iterator[RankRows]:
        """The rows, step by step ascending, and within a step rank by rank."""

    def close(self) -> None:
        """Free the disk space."""


class NameMeaning(NamedTuple):
    """The codes of a name's op types, none if it is no operation, and the numbers in the name."""

    codes: tuple[int, ...]
    mb_id: int = -1
    chunk: int = -1
    step: int = -1


class NameMap:
    """Maps names to op types: by the caller's patterns first, then by the format's own names.

    `known` maps the format's names to the names of op types; to none if they are skipped without
    loss.
    """

    def __init__(self, options: ImportOptions, known: Mapping[str, tuple[str, ...]]) -> None:
        codes = options.op_types.codes
        self._patterns = [(regex, codes[optype]) for regex, optype in options.patterns]
        self._known = {
            name: NameMeaning(tuple(codes[optype] for optype in types))
            for name, types in ({name: (name,) for name in codes} | dict(known)).items()
        }
        self._cache: dict[str, NameMeaning | None] = {}
        self.unknown: Counter[str] = Counter()
        self.num_unknown = 0

    def meaning(self, name: str) -> NameMeaning | None:
        """Meaning of a name, None if unknown."""
        if name in self._cache:
            return self._cache[name]
        meaning = self._match(name) or self._known.get(name)
        if len(self._cache) < _MAX_NAMES and len(name) <= _MAX_CACHED_CHARS:
            self._cache[name] = meaning
        return meaning

    def count_unknown(self, name: str, times: int = 1) -> None:
        """Count operations of an unknown name."""
        self.num_unknown += times
        shown = name[:_MAX_SHOWN_CHARS]
        if shown in self.unknown or len(self.unknown) < _MAX_COUNTED:
            self.unknown[shown] += times

    def missing(self, noun: str) -> list[MissingData]:
        """The unknown names with their counts."""
        shown = [f"{count:,} of {name!r}" for name, count in self.unknown.most_common(_MAX_SHOWN)]
        more = len(self.unknown) - len(shown)
        names = ", ".join(shown) + (f" and {more:,} more names" if more > 0 else "")
        return missing_data(
            (
                self.num_unknown,
                f"op types: {self.num_unknown:,} {noun} have a name that is none, {names}",
                "they are left out, their time counts as waiting; name their types with --map",
            )
        )

    def _match(self, name: str) -> NameMeaning | None:
        for regex, code in self._patterns:
            if match := regex.search(name):
                groups = match.groupdict()
                numbers = (_number(groups.get(part)) for part in ("mb", "chunk", "step"))
                return NameMeaning((code,), *numbers)
        return None


def _number(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return -1
    return int(text)
