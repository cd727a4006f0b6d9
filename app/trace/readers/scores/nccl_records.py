"""Records of the NCCL Inspector: one collective of one process a line, and the table of them all.

Versions of the Inspector that repeat their header on each line are read, and those that do not.
The table has every communicator whose ranks are all known; the logs have no steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from app.trace.collectives import Collectives, RankGroup, RankPlace
from app.trace.readers.input_file import TextLine, TextLines, line_error
from app.trace.readers.scores.score_report import MAX_AT_S, MAX_RANK, printable_name
from app.trace.window import Ints

# A verbose record has some hundred bytes for each channel of the kernel.
_MAX_LINE_BYTES = 1 << 20
# It is looked up in an array, in blocks.
MAX_SN = 2**62

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANK)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class _Header(msgspec.Struct):
    id: _Name
    rank: _Rank
    n_ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANK)]


class _Metadata(msgspec.Struct):
    hostname: Annotated[str, msgspec.Meta(max_length=256)] = "unknown"
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    dump_timestamp_us: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None


class _Channel(msgspec.Struct):
    """Times of one channel of the kernel; 0 if unknown."""

    kernel_start_ts: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    kernel_stop_ts: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0


class _Events(msgspec.Struct):
    kernel_events: list[_Channel] = []


class _Perf(msgspec.Struct):
    coll: _Name
    coll_sn: Annotated[int, msgspec.Meta(ge=0, le=MAX_SN)]
    coll_exec_time_us: _Time
    coll_busbw_gbs: _Time | None = None
    coll_msg_size_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    event_trace_ts: _Events | None = None


class _Stats(msgspec.Struct):
    coll_dropped_since_last_dump: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0


class _Other(msgspec.Struct):
    """A record of the Inspector that is only counted."""


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Perf | None = None
    p2p_perf: _Other | None = None
    proxy_trace: _Other | None = None
    dump_stats: _Stats | None = None


_DECODER = msgspec.json.Decoder(_Record)


class Process(NamedTuple):
    """One process of the job."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"


class RecordOrigin(NamedTuple):
    """The process and communicator of the lines after a header."""

    process: Process
    comm: str
    rank: int  # in the communicator
    num_ranks: int
    at_s: float | None


class CollectiveRecord(NamedTuple):
    """One process's record of one collective.

    `time_us` is that of the kernel's longest channel. With verbose logs the kernel's own span is
    known, from the first channel's start (`start_us`) to the last one's end.
    """

    place: RecordOrigin
    kind: str
    sn: int
    time_us: float
    bandwidth_gbs: float | None
    num_bytes: int = -1
    start_us: float | None = None
    span_us: float | None = None

    @property
    def stay_us(self) -> float:
        """Time the process spent in the collective."""
        return self.time_us if self.span_us is None else self.span_us


@dataclass(slots=True)
class RecordCounts:
    """Counts of records by kind."""

    num_collectives: int = 0
    num_p2p: int = 0
    num_dropped: int = 0


def collective_records(
    texts: Sequence[TextLines], counts: RecordCounts
) -> Iterator[CollectiveRecord]:
    """All collectives in the texts, in order; other records are counted.

    Raises:
        InvalidTrace: a line is not of the Inspector.
    """
    for text in texts:
        place: RecordOrigin | None = None
        for line in text.lines(_MAX_LINE_BYTES):
            if not line.text.strip():
                continue
            record = _record(text, line)
            if record.header is not None:
                place = _place(record.header, record.metadata or _Metadata())
            if record.dump_stats is not None:
                counts.num_dropped += record.dump_stats.coll_dropped_since_last_dump
            counts.num_p2p += record.p2p_perf is not None
            if record.coll_perf is not None:
                if place is None:
                    raise line_error(
                        text, line, "a collective before any header: give the file from its start"
                    )
                counts.num_collectives += 1
                yield _collective(place, record.coll_perf)


def _record(text: TextLines, line: TextLine) -> _Record:
    if not line.is_whole:
        raise line_error(text, line, f"longer than {_MAX_LINE_BYTES:,} bytes: no record is")
    try:
        record = _DECODER.decode(line.text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise line_error(text, line, f"no record of the Inspector: {reason}") from None
    if record.coll_perf is None and record.header is None and not _is_other(record):
        raise line_error(
            text, line, "no record of the Inspector: want header, coll_perf and the like"
        )
    return record


def _is_other(record: _Record) -> bool:
    others = (record.metadata, record.p2p_perf, record.proxy_trace, record.dump_stats)
    return any(each is not None for each in others)


def _place(header: _Header, metadata: _Metadata) -> RecordOrigin:
    process = Process(printable_name(metadata.hostname), metadata.pid)
    at_us = metadata.dump_timestamp_us
    at_s = None if at_us is None or at_us / 1e6 > MAX_AT_S else at_us / 1e6
    return RecordOrigin(process, printable_name(header.id), header.rank, header.n_ranks, at_s)


def _collective(place: RecordOrigin, perf: _Perf) -> CollectiveRecord:
    kind = perf.coll if perf.coll.isidentifier() else printable_name(perf.coll)
    num_bytes = -1 if perf.coll_msg_size_bytes is None else perf.coll_msg_size_bytes
    start_us, span_us = _span(perf.event_trace_ts)
    return CollectiveRecord(
        place,
        kind,
        perf.coll_sn,
        perf.coll_exec_time_us,
        perf.coll_busbw_gbs,
        num_bytes,
        start_us,
        span_us,
    )


def _span(events: _Events | None) -> tuple[float | None, float | None]:
    """From the first start of a channel to the last end; None if one is missing."""
    channels = [] if events is None else events.kernel_events
    if not channels or not all(
        0 < each.kernel_start_ts <= each.kernel_stop_ts for each in channels
    ):
        return None, None
    start_us = min(each.kernel_start_ts for each in channels)
    return float(start_us), float(max(each.kernel_stop_ts for each in channels) - start_us)


MAX_ROWS = 4_000_000  # some 300 MB while they are read
KINDS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all-to-all",
}
_Row = tuple[int, int, int, int, float, float, int]  # comm, kind, sn, rank, start, stay, bytes


class CollectiveTable:
    """Table of collectives; communicators with unknown members are left out.

    `ranks` are the global ranks of processes. The logs have no steps: all is of step 0.
    """

    def __init__(self, ranks: Mapping[Process, int], *, max_rows: int = MAX_ROWS) -> None:
        self._ranks = ranks
        self._max_rows = max_rows
        self._comms: dict[tuple[str, int], int] = {}
        self._kinds: dict[str, int] = {}
        self._members: list[dict[int, int]] = []  # global rank by rank in it, by communicator
        self._rows: list[_Row] = []
        self.num_left_out = 0

    def add(self, each: CollectiveRecord) -> None:
        """Add one rank's record of a collective."""
        place = each.place
        rank = self._ranks.get(place.process)
        if rank is None or len(self._rows) >= self._max_rows:
            self.num_left_out += 1
            return
        comm = self._comms.setdefault((place.comm, place.num_ranks), len(self._comms))
        if comm == len(self._members):
            self._members.append({})
        self._members[comm].setdefault(place.rank, rank)
        kind = self._kinds.setdefault(KINDS.get(each.kind, each.kind), len(self._kinds))
        start_s = np.nan if each.start_us is None else each.start_us / 1e6
        row = (comm, kind, each.sn, rank, start_s, each.stay_us / 1e6, each.num_bytes)
        self._rows.append(row)

    def collectives(self) -> Collectives | None:
        """The table; None where no collective has several ranks."""
        groups: list[RankGroup] = []
        number = np.full(len(self._members), -1, np.int64)
        for (name, num_ranks), at in self._comms.items():
            ranks = sorted(self._members[at].values())
            if num_ranks > 1 and len(set(ranks)) == num_ranks:
                number[at] = len(groups)
                groups.append(RankGroup(name, "", tuple(ranks)))
        if not groups:
            return None
        comm, kind, sn, rank, num_bytes = (self._ints(at) for at in (0, 1, 2, 3, 6))
        chosen = (number[comm] >= 0) & _is_unique(comm, kind, sn, rank)
        starts_s, stays_s = (np.array([row[at] for row in self._rows]) for at in (4, 5))
        known_s = starts_s[np.isfinite(starts_s)]
        return Collectives(
            groups=tuple(groups),
            kinds=tuple(self._kinds),
            group=number[comm][chosen],
            kind=kind[chosen],
            step=np.zeros(int(chosen.sum()), np.int64),
            sequence=sn[chosen],
            rank=rank[chosen],
            start_s=starts_s[chosen] - (known_s.min() if known_s.size else 0.0),
            stay_s=stays_s[chosen],
            num_bytes=num_bytes[chosen],
            places={
                number: RankPlace(number, host=process.host)
                for process, number in self._ranks.items()
            },
            is_continuous=True,
        )

    def _ints(self, at: int) -> Ints:
        return np.array([row[at] for row in self._rows], np.int64)


def _is_unique(
    comm: Ints, kind: Ints, sn: Ints, rank: Ints
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[rows], those that no other row is the same collective as, on the same rank.

    A communicator's name may be used again after a restart: these are two collectives.
    """
    order = np.lexsort((rank, sn, kind, comm))
    same = np.ones(max(order.size - 1, 0), np.bool_)
    for column in (comm, kind, sn, rank):
        same &= np.diff(column[order]) == 0
    alone = np.ones(order.size, np.bool_)
    alone[order[1:][same]] = False
    alone[order[:-1][same]] = False
    return alone
