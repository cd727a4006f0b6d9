"""The interface of importers of foreign formats; to add one, see `registry`.

An importer of operations reads its files once, into an `OpSpool` (`spooled_import.SpooledImport`
does the rest), so that neither the files' size nor their order costs memory.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import Floats, Integers, Ints

MAX_CHUNK_ROWS = 50_000
# Label of a job with host-side times only; its page says so.
HOST_TIMES: Mapping[str, str] = {"times": "host"}


@dataclass(frozen=True, slots=True)
class MissingData:
    """What the source omits, with a count, and which metrics suffer: one line each."""

    what: str
    cost: str


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The caller's options.

    `patterns` map names in the files to op types, first match wins; named groups `mb`, `chunk`
    and `step` in one are read as numbers. `sizes` are those given, by the names of `Parallelism`;
    a size that is not given is read from the files, or inferred. `name` is the job's.
    """

    patterns: tuple[tuple[re.Pattern[str], str], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    op_types: OpTypes = BUILT_IN
    name: str | None = None
    meta: Path | None = None
    spool_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a recorded rank is in the job."""

    dp_rank: int
    stage: int
    host: str | None = None


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """Metadata of the files and counts of their operations.

    `places` are by global rank, one for each (dp rank, stage). `steps` are ascending; `origin_ns`
    [steps] is the first start of each by the hosts' own clocks, None where each
    step has a clock origin of its own. `run_key` tells this run from others.
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
        """The job that was recorded; `name` is taken where the files have none."""
        return Job.of(self.name or name, self.parallelism, self.op_types)


@dataclass(frozen=True, slots=True)
class RankRows:
    """Operations of one rank, all [ops], at most `MAX_CHUNK_ROWS` of them.

    `optype` are codes of the job's types. `start_ns` counts from 1970, or where times are not
    absolute from the beginning of the step; `mc` and `mb_id` are -1 for none. `more` has the
    columns of `window.OPTIONAL` that any rank has (-1 where an operation has none), and `gmc`.
    `seconds` are start and duration as the file has them, where it has seconds without a clock.
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

    @property
    def tokens(self) -> Ints | None:
        """Tokens of each operation's micro-batch."""
        return self.more.get("tokens")

    @property
    def seq_len_sq(self) -> Ints | None:
        """Sum of the squares of the lengths of its sequences."""
        return self.more.get("seq_len_sq")


class OperationImport(Protocol):
    """Files of one job, opened.

    Raises (each method):
        InvalidTrace: one line that names the file, the place in it, and what to do.
    """

    def describe(self) -> ImportSummary:
        """Read the files in bounded memory and summarise them; call it before `chunks`."""

    def chunks(self) -> Iterator[RankRows]:
        """The rows, step by step ascending, and within a step rank by rank."""

    def close(self) -> None:
        """Free the disk space."""
