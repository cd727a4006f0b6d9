"""One rank's Kineto file: what may be an operation, on disk, and what the file says of itself."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from app.trace.readers.json_stream import UNDECODABLE, JsonStream
from app.trace.readers.kineto_groups import DistributedInfo
from app.trace.readers.raw_rows import RawRows
from app.trace.readers.source import Source

HOST, GPU, COMM = range(3)  # an annotation on the host, the same on the GPU, a collective's kernel
_KINDS = {"user_annotation": HOST, "gpu_user_annotation": GPU, "kernel": COMM}
ROW = np.dtype(
    [("kind", "i1"), ("name", "i4"), ("lane", "i4"), ("start_ns", "i8"), ("duration_ns", "i8")]
)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,15})$")
_RANK_AS_TEXT = re.compile(r"\s*\d{1,9}\s*$", re.ASCII)
_RANK_IN_NAME = re.compile(r"rank[\[_-]?(\d{1,9})", re.IGNORECASE)
_COLLECTIVE = b"Collective name"
_MAX_NAMES = 200_000
_LONGEST_NAME = 1_024  # what is beyond it no pattern needs
_MAX_CHARACTERS = 1 << 25  # of all names together
_MAX_STEPS = 100_000
_LARGEST_US = 4e15  # beyond all clocks; with a length as great, still nanoseconds in 64 bits
_LARGEST_BASE_NS = 2**62
# Before Kineto had a base time, times counted from 1970; none does from anything later than 2001.
_SINCE_1970_US = 1e15


class _Event(msgspec.Struct, gc=False):
    """An event; what is of no interest may be anything."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw(b"")


class _CollectiveArgs(msgspec.Struct, gc=False):
    """A kernel's args, of which ranks may be written as text."""

    name: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)


class Collective(NamedTuple):
    """What a kernel's args say of its collective."""

    name: str
    group: str
    description: str
    source: int | None
    target: int | None


Named = str | Collective

_EVENTS = msgspec.json.Decoder(list[_Event])
_INFO = msgspec.json.Decoder(DistributedInfo | None)
_TEXT = msgspec.json.Decoder(str)
_INTEGER = msgspec.json.Decoder(int)
_COLLECTIVE_ARGS = msgspec.json.Decoder(_CollectiveArgs)


class KinetoFile:
    """One file, read when it is made; `names` are what its rows' names are numbers of.

    `steps` are the profiler's steps as (number, start, end), by the clock of the host or GPU.

    Raises:
        InvalidTrace: it is no such file; the message names it and the event.
    """

    def __init__(
        self, path: Path, folder: Path | None, *, most_characters: int = _MAX_CHARACTERS
    ) -> None:
        self.path = path
        self.rows = RawRows(ROW, folder)
        self.names: list[Named] = []
        self.info: DistributedInfo | None = None
        self.host: str | None = None
        self.base_ns: int | None = None
        self.steps: dict[int, list[tuple[int, int, int]]] = {HOST: [], GPU: []}
        self.steps_of_stream: dict[int, list[tuple[int, int, int]]] = {}  # by lane, on the GPU
        self.num_without_group = 0  # kernels of collectives that say of no group
        self._ids: dict[Named, int] = {}
        self._lanes: dict[str, int] = {}
        self._latest_us = 0.0
        self._left_characters = most_characters
        source = Source(path)
        self._stream = JsonStream(source, noun="event")
        try:
            self._read()
        finally:
            source.close()

    @property
    def rank(self) -> int | None:
        """The rank that the file says it is of, in it or in its name."""
        if self.info and self.info.rank is not None:
            return self.info.rank
        found = _RANK_IN_NAME.search(self.path.name)
        return int(found[1]) if found else None

    @property
    def origin_ns(self) -> int | None:
        """What its times count from, in nanoseconds since 1970; None where that is not known."""
        if self.base_ns is not None:
            return self.base_ns
        return 0 if self._latest_us > _SINCE_1970_US else None

    def _read(self) -> None:
        stream = self._stream
        if stream.peek() == b"[":
            self._read_events()  # a Chrome trace without what stands around it
            stream.end()
            return
        if stream.peek() != b"{":
            raise stream.refusal("is no JSON object: want a trace that torch.profiler has exported")
        num_lists = 0
        for key in stream.members():
            if key == "traceEvents":
                num_lists += 1
                self._read_events()
            elif key == "distributedInfo":
                self.info = stream.value(_INFO)
            elif key == "baseTimeNanoseconds":
                self.base_ns = self._base_ns()
            elif key == "host_name" and stream.peek() == b'"':
                self.host = stream.value(_TEXT)[:255] or None
            else:
                stream.skip()
        stream.number = 0
        stream.end()
        if num_lists != 1:
            raise stream.refusal(f"has {num_lists} lists of traceEvents: want one")

    def _base_ns(self) -> int:
        base_ns = self._stream.value(_INTEGER)
        if not 0 <= base_ns <= _LARGEST_BASE_NS:
            raise self._stream.refusal(
                f"baseTimeNanoseconds is {str(base_ns)[:40]}: want nanoseconds since 1970"
            )
        return base_ns

    def _read_events(self) -> None:
        for event in self._stream.elements(_EVENTS):
            if event.ph != "X" or event.cat.__class__ is not str:
                continue
            kind = _KINDS.get(event.cat)
            if kind == COMM:
                self._take_kernel(event)
            elif kind is not None:
                self._take_annotation(kind, event)

    def _take_annotation(self, kind: int, event: _Event) -> None:
        name = event.name
        if name.__class__ is not str:
            raise self._stream.refusal("name is no text")
        start_ns, duration_ns = self._times(event)
        if step := _STEP.match(name):
            steps = self.steps[kind]
            if len(steps) >= _MAX_STEPS:
                raise self._stream.refusal(f"has more than {_MAX_STEPS:,} steps: export fewer")
            steps.append((int(step[1]), start_ns, start_ns + duration_ns))
            if kind == GPU:
                self.steps_of_stream.setdefault(self._lane(event.tid), []).append(steps[-1])
            return
        number = self._id(name[:_LONGEST_NAME])
        self.rows.add(kind, number, self._lane(event.tid), start_ns, duration_ns)

    def _take_kernel(self, event: _Event) -> None:
        args = bytes(event.args)
        if _COLLECTIVE not in args:
            self.num_without_group += "nccl" in str(event.name)[:64].lower()
            return
        try:
            found = _COLLECTIVE_ARGS.decode(args)
        except UNDECODABLE as error:
            raise self._stream.refusal(f"args: {str(error)[:120]}") from error
        number = self._id(_collective(found))
        self.rows.add(COMM, number, self._lane(event.tid), *self._times(event))

    def _times(self, event: _Event) -> tuple[int, int]:
        ts, dur = event.ts, event.dur
        for name, value in (("ts", ts), ("dur", dur)):
            if value.__class__ not in (float, int) or not abs(value) < _LARGEST_US:
                raise self._stream.refusal(f"{name} is {str(value)[:40]!r}: want microseconds")
        if dur < 0:
            raise self._stream.refusal(f"dur is {dur}: an operation ends after its start")
        self._latest_us = max(self._latest_us, ts)
        return round(ts * 1000), round(dur * 1000)

    def _id(self, name: Named) -> int:
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


def _collective(args: _CollectiveArgs) -> Collective:
    return Collective(
        args.name[:_LONGEST_NAME],
        args.group[:_LONGEST_NAME],
        args.description[:_LONGEST_NAME],
        _rank(args.source),
        _rank(args.target),
    )


def _rank(value: object) -> int | None:
    """The rank that a number, or a text with one, stands for; None for anything else."""
    if isinstance(value, str) and _RANK_AS_TEXT.match(value):
        return int(value)
    return value if type(value) is int else None
