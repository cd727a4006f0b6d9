"""Lines of the NCCL Inspector, of versions that repeat their header and of those that do not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from app.trace.readers.score_text import Line, Text, broken
from app.trace.scores import MAX_AT_S, MAX_RANK, named

# A verbose record has some hundred bytes for each channel of the kernel.
_LONGEST_LINE = 1 << 20
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
    """When a channel of the kernel ran; 0 where that is not known."""

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
    """Something of the Inspector's that is only counted."""


class _Record(msgspec.Struct):
    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _Perf | None = None
    p2p_perf: _Other | None = None
    proxy_trace: _Other | None = None
    dump_stats: _Stats | None = None


_DECODER = msgspec.json.Decoder(_Record)


class Process(NamedTuple):
    """One process of the job; a communicator's rank is not one of the job."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"


class Place(NamedTuple):
    """Of whom the lines are, until another header comes."""

    process: Process
    comm: str
    rank: int  # in the communicator
    num_ranks: int
    at_s: float | None


class Collective(NamedTuple):
    """What one process says of one collective.

    `time_us` is that of the kernel's longest channel. With verbose logs the kernel's own span is
    known, from the first channel's start (`start_us`) to the last one's end.
    """

    place: Place
    kind: str
    sn: int
    time_us: float
    bandwidth_gbs: float | None
    num_bytes: int = -1
    start_us: float | None = None
    span_us: float | None = None

    @property
    def stay_us(self) -> float:
        """How long the process was in it, as far as the log tells."""
        return self.time_us if self.span_us is None else self.span_us


@dataclass(slots=True)
class Counts:
    """How many of what there were."""

    num_collectives: int = 0
    num_p2p: int = 0
    num_dropped: int = 0


def collectives(texts: Sequence[Text], counts: Counts) -> Iterator[Collective]:
    """All collectives in the texts, in their order; the others are counted.

    Raises:
        InvalidTrace: a line is none of the Inspector's.
    """
    for text in texts:
        place: Place | None = None
        for line in text.lines(_LONGEST_LINE):
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
                    raise broken(
                        text, line, "a collective before any header: give the file from its start"
                    )
                counts.num_collectives += 1
                yield _collective(place, record.coll_perf)


def _record(text: Text, line: Line) -> _Record:
    if not line.is_whole:
        raise broken(text, line, f"longer than {_LONGEST_LINE:,} bytes: no record is")
    try:
        record = _DECODER.decode(line.text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise broken(text, line, f"no record of the Inspector: {reason}") from None
    if record.coll_perf is None and record.header is None and not _is_other(record):
        raise broken(text, line, "no record of the Inspector: want header, coll_perf and the like")
    return record


def _is_other(record: _Record) -> bool:
    others = (record.metadata, record.p2p_perf, record.proxy_trace, record.dump_stats)
    return any(each is not None for each in others)


def _place(header: _Header, metadata: _Metadata) -> Place:
    process = Process(named(metadata.hostname), metadata.pid)
    at_us = metadata.dump_timestamp_us
    at_s = None if at_us is None or at_us / 1e6 > MAX_AT_S else at_us / 1e6
    return Place(process, named(header.id), header.rank, header.n_ranks, at_s)


def _collective(place: Place, perf: _Perf) -> Collective:
    kind = perf.coll if perf.coll.isidentifier() else named(perf.coll)
    num_bytes = -1 if perf.coll_msg_size_bytes is None else perf.coll_msg_size_bytes
    start_us, span_us = _span(perf.event_trace_ts)
    return Collective(
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
    """From the first start of a channel to the last end of one; None where one of these lacks."""
    channels = [] if events is None else events.kernel_events
    if not channels or not all(
        0 < each.kernel_start_ts <= each.kernel_stop_ts for each in channels
    ):
        return None, None
    start_us = min(each.kernel_start_ts for each in channels)
    return float(start_us), float(max(each.kernel_stop_ts for each in channels) - start_us)
