"""Reads one rank's Kineto file: candidates for operations, put on disk, and the file's metadata.

`app.trace.readers.profiles.events` reads the same files for other events; it shares `Event`,
`read_document`, `times_ns` and `rank_of`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.trace.readers.disk_rows import UnsortedRows
from app.trace.readers.input_file import InputFile
from app.trace.readers.json_stream import UNDECODABLE, JsonStream
from app.trace.readers.kineto.process_groups import DistributedInfo

HOST, GPU, COMM = range(3)  # an annotation on the host, the same on the GPU, a collective's kernel
_KINDS = {"user_annotation": HOST, "gpu_user_annotation": GPU, "kernel": COMM}
ROW = np.dtype(
    [("kind", "i1"), ("name", "i4"), ("lane", "i4"), ("start_ns", "i8"), ("duration_ns", "i8")]
)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,15})$")
RANK_AS_TEXT = re.compile(r"\s*\d{1,9}\s*$", re.ASCII)
_RANK_IN_NAME = re.compile(r"rank[\[_-]?(\d{1,9})", re.IGNORECASE)
_COLLECTIVE_KEY = b"Collective name"
_MAX_NAMES = 200_000
MAX_NAME_CHARS = 1_024  # what is beyond it no pattern needs
_MAX_CHARACTERS = 1 << 25  # of all names together
_MAX_STEPS = 100_000
_MAX_US = 4e15  # beyond all clocks; with a length as great, still nanoseconds in 64 bits
_MAX_BASE_NS = 2**62
# Before Kineto had a base time, times counted from 1970; none does from anything later than 2001.
_SINCE_1970_US = 1e15


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


class _CollectiveArgs(msgspec.Struct, gc=False):
    """A kernel's args; ranks may be text."""

    name: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)


class KernelCollective(NamedTuple):
    """A kernel's collective, from its args."""

    name: str
    group: str
    description: str
    source: int | None
    target: int | None


EventName = str | KernelCollective

EVENTS = msgspec.json.Decoder(list[Event])
_INFO = msgspec.json.Decoder(DistributedInfo | None)
_TEXT = msgspec.json.Decoder(str)
_INTEGER = msgspec.json.Decoder(int)
_COLLECTIVE_ARGS = msgspec.json.Decoder(_CollectiveArgs)


def read_document(
    stream: JsonStream, read_events: Callable[[], None], read_member: Callable[[str], None]
) -> tuple[DistributedInfo | None, str | None]:
    """Read a Chrome trace to its end; returns its distributedInfo and its host.

    `read_events` reads the list of events, `read_member` the value of any other key.

    Raises:
        InvalidTrace: it is no such trace; the message names the file.
    """
    info: DistributedInfo | None = None
    host: str | None = None
    if stream.peek() == b"[":
        read_events()  # only the list of events, without the object around it
        stream.end()
        return info, host
    if stream.peek() != b"{":
        raise stream.refusal("is no JSON object: want a trace that torch.profiler has exported")
    num_lists = 0
    for key in stream.members():
        if key == "traceEvents":
            num_lists += 1
            read_events()
        elif key == "distributedInfo":
            info = stream.value(_INFO)
        elif key == "host_name" and stream.peek() == b'"':
            host = stream.value(_TEXT)[:255] or None
        else:
            read_member(key)
        stream.number = 0
    stream.end()
    if num_lists != 1:
        raise stream.refusal(
            f"has {num_lists} lists of traceEvents: want a trace that torch.profiler has exported"
        )
    return info, host


def times_ns(event: Event, stream: JsonStream) -> tuple[int, int]:
    """Start and duration of an event in nanoseconds.

    Raises:
        InvalidTrace: one of them is no number of microseconds.
    """
    ts, dur = event.ts, event.dur
    for name, value in (("ts", ts), ("dur", dur)):
        if value.__class__ not in (float, int) or not abs(value) < _MAX_US:
            raise stream.refusal(f"{name} is {str(value)[:40]!r}: want microseconds")
    if dur < 0:
        raise stream.refusal(f"dur is {dur}: an operation ends after its start")
    return round(ts * 1000), round(dur * 1000)


def rank_of(info: DistributedInfo | None, path: Path) -> int | None:
    """The rank named in `distributedInfo`, else in the file's name."""
    if info and info.rank is not None:
        return info.rank
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


def step_number(name: str) -> int | None:
    """The N of `ProfilerStep#N`; None for any other name."""
    found = _STEP.match(name)
    return int(found[1]) if found else None


class KinetoFile:
    """One file, read by the constructor; the `name` column of its rows indexes `names`.

    `steps` are the profiler's steps as (number, start, end), by the clock of the host or GPU.

    Raises:
        InvalidTrace: it is no such file; the message names it and the event.
    """

    def __init__(
        self, path: Path, folder: Path | None, *, max_characters: int = _MAX_CHARACTERS
    ) -> None:
        self.path = path
        self.rows = UnsortedRows(ROW, folder)
        self.names: list[EventName] = []
        self.base_ns: int | None = None
        self.steps: dict[int, list[tuple[int, int, int]]] = {HOST: [], GPU: []}
        self.steps_of_stream: dict[int, list[tuple[int, int, int]]] = {}  # by lane, on the GPU
        self.num_without_group = 0  # kernels of collectives that say of no group
        self._ids: dict[EventName, int] = {}
        self._lanes: dict[str, int] = {}
        self._latest_us = 0.0
        self._left_characters = max_characters
        source = InputFile(path)
        self._stream = JsonStream(source, noun="event")
        try:
            self.info, self.host = read_document(self._stream, self._read_events, self._read_member)
        finally:
            source.close()

    @property
    def rank(self) -> int | None:
        """The rank named in the file, else in its name."""
        return rank_of(self.info, self.path)

    @property
    def origin_ns(self) -> int | None:
        """The origin of its times, nanoseconds since 1970; None if unknown."""
        if self.base_ns is not None:
            return self.base_ns
        return 0 if self._latest_us > _SINCE_1970_US else None

    def _read_member(self, key: str) -> None:
        if key == "baseTimeNanoseconds":
            self.base_ns = self._base_ns()
        else:
            self._stream.skip()

    def _base_ns(self) -> int:
        base_ns = self._stream.value(_INTEGER)
        if not 0 <= base_ns <= _MAX_BASE_NS:
            raise self._stream.refusal(
                f"baseTimeNanoseconds is {str(base_ns)[:40]}: want nanoseconds since 1970"
            )
        return base_ns

    def _read_events(self) -> None:
        for event in self._stream.elements(EVENTS):
            if event.ph != "X" or event.cat.__class__ is not str:
                continue
            kind = _KINDS.get(event.cat)
            if kind == COMM:
                self._take_kernel(event)
            elif kind is not None:
                self._take_annotation(kind, event)

    def _take_annotation(self, kind: int, event: Event) -> None:
        name = event.name
        if name.__class__ is not str:
            raise self._stream.refusal("name is no text")
        start_ns, duration_ns = self._times(event)
        if (step := step_number(name)) is not None:
            steps = self.steps[kind]
            if len(steps) >= _MAX_STEPS:
                raise self._stream.refusal(f"has more than {_MAX_STEPS:,} steps: export fewer")
            steps.append((step, start_ns, start_ns + duration_ns))
            if kind == GPU:
                self.steps_of_stream.setdefault(self._lane(event.tid), []).append(steps[-1])
            return
        number = self._id(name[:MAX_NAME_CHARS])
        self.rows.add(kind, number, self._lane(event.tid), start_ns, duration_ns)

    def _take_kernel(self, event: Event) -> None:
        args = bytes(event.args)
        if _COLLECTIVE_KEY not in args:
            self.num_without_group += "nccl" in str(event.name)[:64].lower()
            return
        try:
            found = _COLLECTIVE_ARGS.decode(args)
        except UNDECODABLE as error:
            raise self._stream.refusal(f"args: {str(error)[:120]}") from error
        number = self._id(_collective(found))
        self.rows.add(COMM, number, self._lane(event.tid), *self._times(event))

    def _times(self, event: Event) -> tuple[int, int]:
        times = times_ns(event, self._stream)
        self._latest_us = max(self._latest_us, event.ts)
        return times

    def _id(self, name: EventName) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self._left_characters -= len(name if isinstance(name, str) else "".join(name[:3]))
            if found >= _MAX_NAMES or self._left_characters < 0:
                raise self._stream.refusal(
                    f"has name {found + 1:,}: they are too many or too long: export fewer steps"
                )
            self.names.append(name)
        return found

    def _lane(self, tid: object) -> int:
        lane = str(tid)[:40]
        return self._lanes.setdefault(lane, len(self._lanes)) if len(self._lanes) < 4096 else -1


def _collective(args: _CollectiveArgs) -> KernelCollective:
    return KernelCollective(
        args.name[:MAX_NAME_CHARS],
        args.group[:MAX_NAME_CHARS],
        args.description[:MAX_NAME_CHARS],
        _rank(args.source),
        _rank(args.target),
    )


def _rank(value: object) -> int | None:
    """The rank in a number or numeric text; None for anything else."""
    if isinstance(value, str) and RANK_AS_TEXT.match(value):
        return int(value)
    return value if type(value) is int else None
