"""Reads GPU work, its launches, steps and collectives from one profile."""

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from app.trace.readers.input_file import InputFile
from app.trace.readers.json_stream import UNDECODABLE, JsonStream
from app.trace.readers.kineto.process_groups import DistributedInfo
from app.trace.readers.kineto.trace_file import (
    EVENTS,
    MAX_NAME_CHARS,
    RANK_AS_TEXT,
    Event,
    rank_of,
    read_document,
    step_number,
    times_ns,
)
from app.trace.readers.profiles import event_names

MAX_KERNELS = 4_000_000
MAX_LAUNCHES = 8_000_000
MAX_MARKS = 1_000_000  # annotations and collectives on the host
_MAX_NAMES = 200_000
_RANKS_AS_TEXT = re.compile(r"\[\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?\]$", re.ASCII)
_MAX_RANKS = 1_000_000
_MAX_ELEMENTS = 2**48

# Kinds of GPU work.
COMPUTING, COMMUNICATING, COPYING = range(3)


class _Args(msgspec.Struct, gc=False):
    """Args of kernels, launches and collectives; ranks and sizes may be text."""

    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)  # until 2021
    stream: Any = None
    device: Any = None
    grid: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    first_rank: Any = msgspec.field(name="Global rank start", default=None)
    stride: Any = msgspec.field(name="Global rank stride", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    target: Any = msgspec.field(name="Dst Rank", default=None)
    num_in: Any = msgspec.field(name="In msg nelems", default=None)
    num_out: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None


class CollectiveArgs(NamedTuple):
    """One collective as the file has it; unknown `ranks` are empty, unknown numbers -1.

    `source` and `target` are global ranks of a receive and a send; `num_bytes` is the larger of
    the message in and out.
    """

    kind: str
    group: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    group_size: int = -1
    source: int = -1
    target: int = -1
    num_bytes: int = -1


class HostMark(NamedTuple):
    """A range on a host thread, in nanoseconds by the file's clock."""

    thread: str
    start_ns: int
    end_ns: int
    name: str


class HostCollective(NamedTuple):
    """A collective as the host launched it (`record_param_comms`)."""

    thread: str
    start_ns: int
    end_ns: int
    external_id: int
    args: CollectiveArgs


@dataclass(slots=True)
class ProfileEvents:
    """One file's events, columns [kernels] and [launches] in the file's order.

    `comm` of a kernel is its number in `collectives`, -1 for none; `correlation` and `blocks` (of
    its grid) are -1 where they are not known. `num_ops` counts host operations.
    """

    path: Path
    info: DistributedInfo | None = None
    host: str | None = None
    kind: "array[int]" = field(default_factory=lambda: array("b"))
    stream: "array[int]" = field(default_factory=lambda: array("q"))
    device: "array[int]" = field(default_factory=lambda: array("q"))
    start_ns: "array[int]" = field(default_factory=lambda: array("q"))
    duration_ns: "array[int]" = field(default_factory=lambda: array("q"))
    correlation: "array[int]" = field(default_factory=lambda: array("q"))
    external_id: "array[int]" = field(default_factory=lambda: array("q"))
    blocks: "array[int]" = field(default_factory=lambda: array("q"))
    comm: "array[int]" = field(default_factory=lambda: array("q"))
    launch_correlation: "array[int]" = field(default_factory=lambda: array("q"))
    launch_ns: "array[int]" = field(default_factory=lambda: array("q"))
    launch_thread: "array[int]" = field(default_factory=lambda: array("q"))
    threads: dict[str, int] = field(default_factory=dict)
    collectives: list[CollectiveArgs] = field(default_factory=list)
    profiler_steps: list[HostMark] = field(default_factory=list)
    optimizer_steps: list[HostMark] = field(default_factory=list)
    gpu_steps: list[HostMark] = field(default_factory=list)
    annotated: list[HostMark] = field(default_factory=list)
    data_waits: list[HostMark] = field(default_factory=list)
    host_collectives: list[HostCollective] = field(default_factory=list)
    devices_unread: Counter[str] = field(default_factory=Counter)
    num_ops: int = 0
    is_training: bool = False
    is_serving: bool = False
    is_amd: bool = False

    @property
    def rank(self) -> int | None:
        """The rank named in the file, else in its name."""
        return rank_of(self.info, self.path)


def read(path: Path) -> ProfileEvents:
    """Read one file's events.

    Raises:
        InvalidTrace: it is no profile, or damaged; the message names the file and event.
    """
    source = InputFile(path)
    try:
        reader = _EventReader(path, JsonStream(source, noun="event"))
        reader.read()
    finally:
        source.close()
    return reader.events


_ARGS = msgspec.json.Decoder(_Args)


class _EventReader:
    """Reads one file; `events` is the result so far."""

    def __init__(self, path: Path, stream: JsonStream) -> None:
        self.events = ProfileEvents(path)
        self._stream = stream
        self._is_comm: dict[str, bool] = {}  # by a kernel's name
        self._comms: dict[CollectiveArgs, int] = {}
        self._num_kept = 0

    def read(self) -> None:
        """Read the file to its end."""
        info, self.events.host = read_document(
            self._stream, self._read_events, lambda _: self._stream.skip()
        )
        self._check_info(info)
        self.events.info = info

    def _check_info(self, info: DistributedInfo | None) -> None:
        if info is not None:
            for name, value in (("rank", info.rank), ("world_size", info.world_size)):
                if value is not None and not 0 <= value <= _MAX_RANKS:
                    raise self._stream.refusal(f"distributedInfo: {name} is {str(value)[:40]}")

    def _read_events(self) -> None:
        events = self.events
        for event in self._stream.elements(EVENTS):
            category = event.cat
            if category.__class__ is not str:
                continue
            role = event_names.ROLES.get(category)
            if role is None:
                lowered = category.lower()[:40]
                role = event_names.ROLES.get(lowered)
                if role is None:
                    if lowered in event_names.UNREAD_DEVICES:
                        events.devices_unread[event_names.UNREAD_DEVICES[lowered]] += 1
                    elif lowered == "fwdbwd":
                        events.is_training = True
                    continue
            if event.ph != "X":
                continue
            if event.name.__class__ is not str:
                raise self._stream.refusal("name is no text")
            if role in (event_names.KERNEL, event_names.COPY):
                self._take_kernel(role, event)
            elif role == event_names.LAUNCH:
                self._take_launch(event)
            elif role == event_names.MARK:
                self._take_gpu_mark(event)
            else:
                self._take_host_op(role, event)

    def _take_kernel(self, role: int, event: Event) -> None:
        events, name = self.events, event.name
        if len(events.kind) >= MAX_KERNELS:
            raise self._stream.refusal(
                f"has more than {MAX_KERNELS:,} kernels: profile fewer steps"
            )
        args = self._args(event)
        start_ns, duration_ns = times_ns(event, self._stream)
        is_comm = role == event_names.KERNEL and self._communicates(name, args)
        comm = self._comm(args, name) if is_comm else -1
        kind = COPYING if role == event_names.COPY else COMMUNICATING if is_comm else COMPUTING
        events.kind.append(kind)
        events.stream.append(_integer(args.stream if args.stream is not None else event.tid))
        events.device.append(_integer(args.device if args.device is not None else event.pid))
        events.start_ns.append(start_ns)
        events.duration_ns.append(duration_ns)
        events.correlation.append(_integer(args.correlation))
        events.external_id.append(_external_id(args))
        events.blocks.append(_num_blocks(args.grid))
        events.comm.append(comm)

    def _communicates(self, name: str, args: _Args) -> bool:
        found = self._is_comm.get(name)
        if found is None:
            found = event_names.is_communication(name)
            if len(self._is_comm) < _MAX_NAMES:
                self._is_comm[name] = found
            self.events.is_training = self.events.is_training or event_names.is_training_kernel(
                name
            )
            self.events.is_serving = self.events.is_serving or event_names.is_serving(name)
        return found or args.collective is not None

    def _comm(self, args: _Args, kernel: str) -> int:
        found = _collective(args)
        if found is None:
            found = CollectiveArgs(event_names.kind_of_kernel(kernel))
        number = self._comms.setdefault(found, len(self._comms))
        if number == len(self.events.collectives):
            self._keep()
            self.events.collectives.append(found)
        return number

    def _take_launch(self, event: Event) -> None:
        events, name = self.events, event.name
        events.is_amd = events.is_amd or name.startswith("hip")
        if not event_names.is_launch(name):
            return
        correlation = _integer(self._args(event).correlation)
        if correlation < 0:
            return
        if len(events.launch_ns) >= MAX_LAUNCHES:
            raise self._stream.refusal(
                f"has more than {MAX_LAUNCHES:,} launches: profile fewer steps"
            )
        events.launch_correlation.append(correlation)
        events.launch_ns.append(times_ns(event, self._stream)[0])
        events.launch_thread.append(self._thread(event.tid))

    def _take_gpu_mark(self, event: Event) -> None:
        if step_number(event.name) is not None:
            self._keep()
            self.events.gpu_steps.append(self._mark(event))

    def _take_host_op(self, role: int, event: Event) -> None:
        events, name = self.events, event.name
        events.num_ops += role == event_names.HOST_OP
        if step_number(name) is not None:
            self._keep()
            events.profiler_steps.append(self._mark(event))
        elif event_names.is_optimizer(name):
            self._keep()
            events.is_training = True
            events.optimizer_steps.append(self._mark(event))
        elif name == event_names.COMMUNICATION_OP:
            self._take_host_collective(event)
        elif event_names.annotated_collective(name) is not None:
            self._keep()
            events.annotated.append(self._mark(event))
        elif event_names.is_loader(name):
            self._keep()
            events.data_waits.append(self._mark(event))
        elif not events.is_training and event_names.is_training_op(name):
            events.is_training = True
        elif not events.is_serving and event_names.is_serving(name):
            events.is_serving = True

    def _take_host_collective(self, event: Event) -> None:
        args = self._args(event)
        found = _collective(args)
        if found is None or found.kind in ("wait", "init"):
            return
        self._keep()
        start_ns, duration_ns = times_ns(event, self._stream)
        thread = str(event.tid)[:40]
        external_id = _external_id(args)
        self.events.host_collectives.append(
            HostCollective(thread, start_ns, start_ns + duration_ns, external_id, found)
        )

    def _mark(self, event: Event) -> HostMark:
        start_ns, duration_ns = times_ns(event, self._stream)
        name = event.name[:MAX_NAME_CHARS]
        return HostMark(str(event.tid)[:40], start_ns, start_ns + duration_ns, name)

    def _keep(self) -> None:
        self._num_kept += 1
        if self._num_kept > MAX_MARKS:
            raise self._stream.refusal(
                f"has more than {MAX_MARKS:,} steps and collectives: profile fewer steps"
            )

    def _thread(self, tid: object) -> int:
        threads, name = self.events.threads, str(tid)[:40]
        return threads.setdefault(name, len(threads)) if len(threads) < 1 << 16 else -1

    def _args(self, event: Event) -> _Args:
        raw = bytes(event.args)
        if not raw or raw == b"null":
            return _Args()
        try:
            return _ARGS.decode(raw)
        except UNDECODABLE as error:
            raise self._stream.refusal(f"args: {str(error)[:120]}") from error


def _collective(args: _Args) -> CollectiveArgs | None:
    """The collective in the args; None if there is none."""
    if args.collective.__class__ is not str:
        return None
    group = args.group if isinstance(args.group, str | int) else ""
    description = args.description if isinstance(args.description, str) else ""
    return CollectiveArgs(
        event_names.kind_of(args.collective),
        str(group)[:MAX_NAME_CHARS],
        description[:MAX_NAME_CHARS],
        _ranks(args),
        _integer(args.group_size),
        _integer(args.source),
        _integer(args.target),
        _num_bytes(args),
    )


def _ranks(args: _Args) -> tuple[int, ...]:
    """Global ranks of the group, ascending; empty where the list is truncated."""
    size = _integer(args.group_size)
    found = args.ranks
    if isinstance(found, str) and len(found) < 1 << 20 and _RANKS_AS_TEXT.match(found):
        found = [int(each) for each in found[1:-1].split(",") if each.strip()]
    if isinstance(found, list) and found and all(type(each) is int for each in found):
        if size in (-1, len(found)) and min(found) >= 0:
            return tuple(sorted(set(found)))
        return ()
    first, stride = _integer(args.first_rank), _integer(args.stride)
    if first >= 0 and stride >= 1 and 1 <= size <= 1 << 16:
        return tuple(range(first, first + size * stride, stride))
    return ()


def _num_blocks(grid: object) -> int:
    """Blocks of a kernel's grid, -1 where it is not known."""
    if not isinstance(grid, list) or len(grid) != 3:
        return -1
    if not all(type(each) is int and 0 < each < 1 << 31 for each in grid):
        return -1
    return min(prod(grid), _MAX_ELEMENTS)


def _num_bytes(args: _Args) -> int:
    elements = max(_integer(args.num_in), _integer(args.num_out))
    item = event_names.ITEM_BYTES.get(str(args.dtype).lower()[:40])
    return elements * item if item and 0 < elements <= _MAX_ELEMENTS else -1


def _external_id(args: _Args) -> int:
    known = args.external_id
    return _integer(args.old_external_id if known is None else known)


def _integer(value: object) -> int:
    """The number in an integer or numeric text; -1 for anything else."""
    if isinstance(value, str) and RANK_AS_TEXT.match(value):
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 62 else -1
