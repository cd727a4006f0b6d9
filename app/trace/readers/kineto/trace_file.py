"""Reads one rank's torch.profiler file, once, into columns.

`TraceFile` has what every use of a file needs: who wrote it, the names, threads and process groups
of its events, ranges of time and the profiler's steps. `AnnotatedFile` takes all annotations and
collectives, for an import; `gpu_events.ProfileFile` all work of the GPU and how it was launched.
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

from app.trace.readers.disk_rows import UNSORTED_ROWS_HELD, UnsortedRows
from app.trace.readers.json_stream import UNDECODABLE, InputFile, JsonStream
from app.trace.readers.kineto import event_names
from app.trace.readers.kineto.process_groups import DistributedInfo
from app.trace.window import Ints

HOST, GPU, COMM = range(3)  # an annotation on the host, the same on the GPU, a collective
_RANK_AS_TEXT = re.compile(r"\s*\d{1,9}\s*$", re.ASCII)
_RANK_IN_NAME = re.compile(r"rank[\[_-]?(\d{1,9})", re.IGNORECASE)
_COLLECTIVE_KEY = b"Collective name"
MAX_NAME_CHARS = 1_024  # what is beyond it no pattern needs
_MAX_CHARACTERS = 1 << 25  # of all names together
_MAX_STEPS = 100_000
_MAX_US = 4e15  # beyond all clocks; with a length as great, still nanoseconds in 64 bits
_MAX_BASE_NS = 2**62
# Before Kineto had a base time, times counted from 1970; none does from anything later than 2001.
_SINCE_1970_NS = 10**18
OUTSIDE = -1

T = TypeVar("T")


class Event(msgspec.Struct, gc=False):
    """An event; fields that are not read may hold anything."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _GroupArgs(msgspec.Struct, gc=False):
    """What args of a kernel say of its group; ranks may be text."""

    name: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)


class Collective(NamedTuple):
    """One collective as the file has it; unknown `ranks` are empty, unknown numbers -1.

    `source` and `target` are global ranks of a receive and a send; `num_bytes` is the larger of
    the message in and out.
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
        """Its name as all versions and vendors have it."""
        return event_names.kind_of(self.name)


EventName = str | Collective
Taker = Callable[[Event], None]


class StepMark(NamedTuple):
    """The profiler's mark of one step, on a thread of the host or a stream of the GPU."""

    number: int
    lane: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepBounds:
    """Steps in order of their starts; `numbers` as the file counts them, bounds [steps]."""

    numbers: tuple[int, ...]
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, spans: list[tuple[int, int, int]]) -> "StepBounds":
        """Of (start, end, number), ascending."""
        starts, ends, numbers = zip(*spans, strict=True) if spans else ((), (), ())
        return cls(numbers, np.array(starts, np.int64), np.array(ends, np.int64))

    def at(self, time_ns: Ints) -> Ints:
        """[times] index of the last step begun; `OUTSIDE` before the first and after the last.

        What begins between two steps belongs to the first: a GPU finishes it later than its host.
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

    `ranges` are of `RANGE_COLUMNS`: their `name` indexes `names`, their `lane` is that of a thread
    or stream in `lanes`, -1 where there are too many. `steps` are the profiler's, on the host and
    on the GPU.

    Raises:
        InvalidTrace: it is no such file, or damaged; the message names it and the event.
    """

    RANGE_COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "name", "lane", "start_ns", "duration_ns")
    RANGES_HELD: ClassVar[int] = UNSORTED_ROWS_HELD  # in memory, the others on disk
    MAX_LANES: ClassVar[int]
    MAX_NAMES: ClassVar[int]

    def __init__(
        self, path: Path, folder: Path | None = None, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        self.path = path
        self.info: DistributedInfo | None = None
        self.host: str | None = None
        self.names: list[EventName] = []
        self.lanes: dict[str, int] = {}
        self.ranges = UnsortedRows(self.RANGE_COLUMNS, folder, self.RANGES_HELD)
        self.steps: dict[int, list[StepMark]] = {HOST: [], GPU: []}
        self._ids: dict[EventName, int] = {}
        self._left_characters = max_characters
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
        named = _RANK_IN_NAME.search(self.path.name)
        return int(named[1]) if named else None

    @abstractmethod
    def _takers(self) -> Mapping[int, Taker]:
        """What takes the events that have a length, by their role."""

    def _taker_of(self, takers: Mapping[str, Taker]) -> Callable[[str], Taker | None]:
        """Finds the taker of a category; `takers` has those of the known ones."""
        return takers.get

    def _read_member(self, key: str) -> None:
        """Read the value of a key that not every use needs."""
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
        takers = self._takers()
        taker_of = self._taker_of(
            {
                category: take
                for role, take in takers.items()
                for category in event_names.CATEGORIES[role]
            }
        )
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
    """The number in an integer or numeric text; -1 for anything else."""
    if isinstance(value, str) and _RANK_AS_TEXT.match(value):
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 62 else -1


class AnnotatedFile(TraceFile):
    """All annotations, and the kernels of collectives that say their group, whatever their names.

    `num_without_group` counts kernels of collectives that do not.
    """

    MAX_LANES = 4_096
    MAX_NAMES = 200_000

    def __init__(
        self, path: Path, folder: Path | None, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        self.base_ns: int | None = None
        self.num_without_group = 0
        super().__init__(path, folder, max_characters=max_characters)

    @property
    def origin_ns(self) -> int | None:
        """The origin of its times, nanoseconds since 1970; None if unknown."""
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
        said = self._decoded(_GROUP_ARGS, args)
        collective = Collective(
            said.name[:MAX_NAME_CHARS],
            said.group[:MAX_NAME_CHARS],
            said.description[:MAX_NAME_CHARS],
            source=integer(said.source),
            target=integer(said.target),
        )
        self._add_range(COMM, collective, event)
