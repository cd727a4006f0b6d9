"""Reads one rank's torch.profiler file, once, into columns.

`TraceFile` reads what every use of a file needs: the rank, the process groups, the names and
threads of events, ranges of time and the profiler's steps. `AnnotatedFile` adds all annotations and
collectives, for an import; `gpu_events.ProfileFile` adds the work of the GPU and its launches.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Never, TypeVar

import msgspec
import numpy as np
from typing_extensions import override

from app.trace.readers.disk_rows import ROWS_HELD, UnsortedRows
from app.trace.readers.json_stream import UNDECODABLE, InputFile, JsonStream
from app.trace.readers.kineto import event_names
from app.trace.readers.kineto.process_groups import DistributedInfo
from app.trace.window import Ints

HOST, GPU, COMM = range(3)  # an annotation on the host, the same on the GPU, a collective
_RANK_AS_TEXT = re.compile(r"\s*\d{1,9}\s*$", re.ASCII)
_RANK_IN_NAME = re.compile(r"rank[\[_-]?(\d{1,9})", re.IGNORECASE)
_COLLECTIVE_KEY = b"Collective name"
MAX_NAME_CHARS = 1_024  # longer names are cut
_MAX_STEPS = 100_000
_MAX_US = 4e15  # beyond all clocks; twice as many still fit into 64 bits as nanoseconds
_MAX_BASE_NS = 2**62
# Files of PyTorch versions without a base time count from 1970: their times are beyond this one, in
# 2001, which times that count from a base never reach.
_SINCE_1970_NS = 10**18
OUTSIDE = -1

T = TypeVar("T")


class Event(msgspec.Struct, gc=False):
    """An event; fields of skipped events may hold anything."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _GroupArgs(msgspec.Struct, gc=False):
    """The args of a kernel that describe its group; ranks may be text."""

    name: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)


class Collective(NamedTuple):
    """A collective as the file describes it; unknown `ranks` are empty, unknown numbers -1.

    `source` and `target` are global ranks of a receive and a send; `num_bytes` is the size of the
    larger one of the messages in and out.
    """

    name: str
    group: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int = -1
    source: int = -1
    target: int = -1
    num_bytes: int = -1

    @property
    def kind(self) -> str:
        """Its kind, which is independent of PyTorch's version and the vendor."""
        return event_names.kind_of(self.name)


EventName = str | Collective
Taker = Callable[[Event], None]


class StepMark(NamedTuple):
    """The profiler's mark of a step, on a thread of the host or a stream of the GPU."""

    number: int
    lane: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Steps in order of their starts; `numbers` as in the file, bounds [steps]."""

    numbers: tuple[int, ...]
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, spans: list[tuple[int, int, int]]) -> "StepBounds":
        """From (start, end, number), ascending."""
        starts, ends, numbers = zip(*spans, strict=True) if spans else ((), (), ())
        return cls(numbers, np.array(starts, np.int64), np.array(ends, np.int64))

    def at(self, time_ns: Ints) -> Ints:
        """[times] index of the last step begun; `OUTSIDE` before the first and after the last.

        A time between two steps belongs to the first one, since a GPU ends a step after its host.
        """
        index = np.searchsorted(self.start_ns, time_ns, "right") - 1
        return np.where(time_ns > self.end_ns[-1], OUTSIDE, index) if self.numbers else index


EVENTS = msgspec.json.Decoder(list[Event])
_INFO = msgspec.json.Decoder(DistributedInfo | None)
_TEXT = msgspec.json.Decoder(str)
_INTEGER = msgspec.json.Decoder(int)
_GROUP_ARGS = msgspec.json.Decoder(_GroupArgs)


class TraceFile(ABC):
    """One rank's file, read by the constructor; times are nanoseconds of the file's clock.

    `ranges` have the `RANGE_COLUMNS`: their `name` indexes `names`, their `lane` is the number of a
    thread or stream in `lanes`, -1 beyond `MAX_LANES`. `steps` are the profiler's, on the host and
    on the GPU.

    Raises:
        InvalidTrace: the file has another format, or is damaged; the message names it and the
            event.
    """

    RANGE_COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "name", "lane", "start_ns", "duration_ns")
    RANGES_HELD: ClassVar[int] = ROWS_HELD  # in memory, the others on disk
    MAX_LANES: ClassVar[int]
    MAX_NAMES: ClassVar[int]
    MAX_CHARACTERS: ClassVar[int] = 1 << 25  # of all names together

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self.info: DistributedInfo | None = None
        self.host: str | None = None
        self.names: list[EventName] = []
        self.lanes: dict[str, int] = {}
        self.ranges = UnsortedRows(self.RANGE_COLUMNS, folder, self.RANGES_HELD)
        self.steps: dict[int, list[StepMark]] = {HOST: [], GPU: []}
        self._ids: dict[EventName, int] = {}
        self._left_characters = self.MAX_CHARACTERS
        source = InputFile(path)
        self._stream = JsonStream(source, noun="event")
        try:
            self._read_document()
        finally:
            source.close()

    @property
    def rank(self) -> int | None:
        """The rank named in `distributedInfo`, else in the file's name."""
        if self.info and self.info.rank is not None:
            return self.info.rank
        match = _RANK_IN_NAME.search(self.path.name)
        return int(match[1]) if match else None

    @abstractmethod
    def _takers(self) -> Mapping[int, Taker]:
        """The functions that take the events with a duration, by role."""

    def _taker_of(self, takers: Mapping[str, Taker]) -> Callable[[str], Taker | None]:
        """The function that looks up the taker of a category in `takers`, by category."""
        return takers.get

    def _read_member(self, key: str) -> None:
        """Read or skip the value of another key of the file."""
        self._stream.skip()

    def _read_document(self) -> None:
        stream = self._stream
        if stream.peek() == b"[":
            self._read_events()  # only the list of events, without the object around it
            stream.end()
            return
        if stream.peek() != b"{":
            self._refuse("is no JSON object: want a trace that torch.profiler has exported")
        num_lists = 0
        for key in stream.members():
            if key == "traceEvents":
                num_lists += 1
                self._read_events()
            elif key == "distributedInfo":
                self.info = stream.value(_INFO)
            elif key == "host_name" and stream.peek() == b'"':
                self.host = stream.value(_TEXT)[:255] or None
            else:
                self._read_member(key)
            stream.number = 0
        stream.end()
        if num_lists != 1:
            self._refuse(
                f"has {num_lists} lists of traceEvents: want a trace that torch.profiler has "
                "exported"
            )

    def _read_events(self) -> None:
        takers = {
            category: take
            for role, take in self._takers().items()
            for category in event_names.CATEGORIES[role]
        }
        taker_of = self._taker_of(takers)
        for event in self._stream.elements(EVENTS):
            category = event.cat
            if category.__class__ is not str:
                continue
            taker = taker_of(category)
            if taker is not None and event.ph == "X":
                taker(event)

    def _name(self, event: Event) -> str:
        if event.name.__class__ is not str:
            self._refuse("name is no text")
        name: str = event.name
        return name

    def _times(self, event: Event) -> tuple[int, int]:
        """Start and duration of an event in nanoseconds."""
        ts, dur = event.ts, event.dur
        for name, value in (("ts", ts), ("dur", dur)):
            if value.__class__ not in (float, int) or not abs(value) < _MAX_US:
                self._refuse(f"{name} is {str(value)[:40]!r}: want microseconds")
        if dur < 0:
            self._refuse(f"dur is {dur}: an operation ends after its start")
        return round(ts * 1000), round(dur * 1000)

    def _add_range(self, kind: int, name: EventName, event: Event, *more: int) -> None:
        start_ns, duration_ns = self._times(event)
        lane = self._lane(event.tid)
        self.ranges.add(kind, self._number(name), lane, start_ns, duration_ns, *more)

    def _add_step(self, kind: int, number: int, event: Event) -> None:
        start_ns, duration_ns = self._times(event)
        mark = StepMark(number, self._lane(event.tid), start_ns, start_ns + duration_ns)
        self.steps[kind].append(mark)

    def _number(self, name: EventName) -> int:
        known = self._ids.get(name)
        if known is not None:
            return known
        number = self._ids[name] = len(self.names)
        self._left_characters -= len(name if isinstance(name, str) else "".join(name[:3]))
        if number >= self.MAX_NAMES or self._left_characters < 0:
            self._refuse(
                f"has name {number + 1:,}: they are too many or too long: export fewer steps"
            )
        self.names.append(name)
        return number

    def _lane(self, tid: object) -> int:
        lanes, name = self.lanes, str(tid)[:40]
        return lanes.setdefault(name, len(lanes)) if len(lanes) < self.MAX_LANES else -1

    def _refuse(self, reason: str) -> Never:
        raise self._stream.refusal(reason)

    def _decoded(self, decoder: "msgspec.json.Decoder[T]", args: bytes) -> T:
        try:
            return decoder.decode(args)
        except UNDECODABLE as error:
            raise self._stream.refusal(f"args: {str(error)[:120]}") from error


def integer(value: object) -> int:
    """The value of an integer or a numeric text; -1 for anything else."""
    if isinstance(value, str) and _RANK_AS_TEXT.match(value):
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 62 else -1


class AnnotatedFile(TraceFile):
    """All annotations, and the kernels of collectives with a known group.

    `num_without_group` counts the kernels of collectives without one.
    """

    MAX_LANES = 4_096
    MAX_NAMES = 200_000

    def __init__(self, path: Path, folder: Path | None) -> None:
        self.base_ns: int | None = None
        self.num_without_group = 0
        super().__init__(path, folder)

    @property
    def origin_ns(self) -> int | None:
        """The origin of the file's times, nanoseconds since 1970; None if unknown."""
        if self.base_ns is not None:
            return self.base_ns
        marks = [mark.start_ns for marks in self.steps.values() for mark in marks]
        latest = [int(rows["start_ns"].max()) for rows in self.ranges.blocks()]
        return 0 if max(marks + latest, default=0) > _SINCE_1970_NS else None

    @override
    def _takers(self) -> Mapping[int, Taker]:
        return {
            event_names.ANNOTATION: partial(self._take_annotation, HOST),
            event_names.GPU_ANNOTATION: partial(self._take_annotation, GPU),
            event_names.KERNEL: self._take_kernel,
        }

    @override
    def _read_member(self, key: str) -> None:
        if key != "baseTimeNanoseconds":
            self._stream.skip()
            return
        self.base_ns = self._stream.value(_INTEGER)
        if not 0 <= self.base_ns <= _MAX_BASE_NS:
            self._refuse(
                f"baseTimeNanoseconds is {str(self.base_ns)[:40]}: want nanoseconds since 1970"
            )

    def _take_annotation(self, kind: int, event: Event) -> None:
        name = self._name(event)
        step = event_names.step_number(name)
        if step is None:
            self._add_range(kind, name[:MAX_NAME_CHARS], event)
            return
        if len(self.steps[kind]) >= _MAX_STEPS:
            self._refuse(f"has more than {_MAX_STEPS:,} steps: export fewer")
        self._add_step(kind, step, event)

    def _take_kernel(self, event: Event) -> None:
        args = bytes(event.args)
        if _COLLECTIVE_KEY not in args:
            self.num_without_group += "nccl" in str(event.name)[:64].lower()
            return
        group = self._decoded(_GROUP_ARGS, args)
        collective = Collective(
            group.name[:MAX_NAME_CHARS],
            group.group[:MAX_NAME_CHARS],
            group.description[:MAX_NAME_CHARS],
            source=integer(group.source),
            target=integer(group.target),
        )
        self._add_range(COMM, collective, event)
