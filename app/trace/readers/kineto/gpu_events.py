"""Reads the GPU's work from one rank's file: kernels and copies, launches and collectives."""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from app.trace.readers.disk_rows import Rows
from app.trace.readers.kineto import event_names
from app.trace.readers.kineto.trace_file import (
    COMM,
    GPU,
    HOST,
    MAX_NAME_CHARS,
    Collective,
    Event,
    Taker,
    TraceFile,
    integer,
)

MAX_KERNELS = 4_000_000
MAX_LAUNCHES = 8_000_000
MAX_MARKS = 1_000_000  # annotations and collectives on the host
_MAX_NAMES = 200_000
_RANKS_AS_TEXT = re.compile(r"\[\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?\]$", re.ASCII)
_MAX_RANKS = 1_000_000
_MAX_ELEMENTS = 2**48

# For kernels and copies that are no collective.
COMPUTES, COPIES = -1, -2
_KERNEL_COLUMNS = (
    *("collective", "stream", "device", "start_ns", "duration_ns"),
    *("correlation", "external_id", "blocks"),
)
_LAUNCH_COLUMNS = ("correlation", "at_ns", "lane")
# Beginnings of the names of the ranges on the host that are read.
_KEPT_RANGES = (
    *(event_names.STEP, event_names.OPTIMIZER, event_names.LOADER_OR_ITS_ITERATOR),
    *(event_names.ANNOTATED, event_names.COALESCED, re.compile(f"{event_names.COMMUNICATION_OP}$")),
)
_KEPT = re.compile("|".join(pattern.pattern for pattern in _KEPT_RANGES))


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


_ARGS = msgspec.json.Decoder(_Args)


_UNKNOWN = Collective("")


class ProfileFile(TraceFile):
    """The work of the GPU and its launches, in the file's order.

    `ranges` are the host's optimizer steps, waits for data and annotations of collectives (`HOST`),
    and its calls of collectives (`COMM`). `num_ops` counts host operations.
    """

    RANGE_COLUMNS = (*TraceFile.RANGE_COLUMNS, "external_id")
    MAX_LANES = 1 << 16
    MAX_NAMES = RANGES_HELD = MAX_MARKS

    def __init__(self, path: Path) -> None:
        self.devices_unread: Counter[str] = Counter()
        self.num_ops = 0
        self.is_training = False
        self.is_serving = False
        self.is_amd = False
        self._kernels = array("q")
        self._launches = array("q")
        self._num_kept = 0
        super().__init__(path)

    @property
    def kernels(self) -> Rows:
        """The GPU's kernels and copies.

        `collective` indexes `names`, or is `COMPUTES` or `COPIES`; unknown `correlation` and
        `blocks` (of its grid) are -1.
        """
        return _as_rows(self._kernels, _KERNEL_COLUMNS)

    @property
    def launches(self) -> Rows:
        """The calls on the host that launched the GPU's work; `lane` is the thread's."""
        return _as_rows(self._launches, _LAUNCH_COLUMNS)

    @cached_property
    def texts(self) -> list[str]:
        """`names`, with "" for collectives."""
        return [name if isinstance(name, str) else "" for name in self.names]

    @cached_property
    def collectives(self) -> list[Collective]:
        """`names`, with an unknown collective for texts."""
        return [name if isinstance(name, Collective) else _UNKNOWN for name in self.names]

    def named(self, ranges: Rows, pattern: "re.Pattern[str]") -> Rows:
        """The ranges on the host whose names match, in the file's order."""
        is_match = np.array([bool(pattern.match(text)) for text in self.texts], np.bool_)
        matches: Rows = ranges[is_match[ranges["name"]]]
        return matches

    @override
    def _takers(self) -> Mapping[int, Taker]:
        # Names repeat, so answers are cached; not in attributes, since a reference cycle would keep
        # the file in memory.
        communicates = _cached(self._communicates)
        is_kept = _cached(self._is_kept)
        return {
            event_names.KERNEL: partial(self._take_kernel, communicates),
            event_names.COPY: self._take_copy,
            event_names.LAUNCH: self._take_launch,
            event_names.GPU_ANNOTATION: self._take_gpu_annotation,
            event_names.ANNOTATION: partial(self._take_range, is_kept),
            event_names.HOST_OP: partial(self._take_host_op, is_kept),
        }

    @override
    def _taker_of(self, takers: Mapping[str, Taker]) -> Callable[[str], Taker | None]:
        def taker_of(category: str) -> Taker | None:
            if (take := takers.get(category)) is not None:
                return take
            lowered = category.lower()[:40]
            if lowered in event_names.UNREAD_DEVICES:
                self.devices_unread[event_names.UNREAD_DEVICES[lowered]] += 1
            elif lowered == "fwdbwd":
                self.is_training = True
            return takers.get(lowered)

        return taker_of

    @override
    def _read_document(self) -> None:
        super()._read_document()
        if self.info is not None:
            for name in ("rank", "world_size"):
                value = getattr(self.info, name)
                if value is not None and not 0 <= value <= _MAX_RANKS:
                    self._refuse(f"distributedInfo: {name} is {str(value)[:40]}")

    def _take_kernel(self, communicates: Callable[[str], bool], event: Event) -> None:
        name, args = self._name(event), self._args(event)
        collective = COMPUTES
        if communicates(name) or args.collective is not None:
            kind = _collective(args) or Collective(event_names.kind_of_kernel(name))
            collective = self._number(kind)
        self._add_work(event, args, collective)

    def _take_copy(self, event: Event) -> None:
        self._name(event)
        self._add_work(event, self._args(event), COPIES)

    def _add_work(self, event: Event, args: _Args, collective: int) -> None:
        if len(self._kernels) >= MAX_KERNELS * len(_KERNEL_COLUMNS):
            self._refuse(f"has more than {MAX_KERNELS:,} kernels: profile fewer steps")
        self._kernels.extend(
            (
                collective,
                integer(args.stream if args.stream is not None else event.tid),
                integer(args.device if args.device is not None else event.pid),
                *self._times(event),
                integer(args.correlation),
                _external_id(args),
                _num_blocks(args.grid),
            )
        )

    def _communicates(self, name: str) -> bool:
        """Whether kernels of this name communicate with other ranks."""
        self.is_training |= event_names.TRAINING_KERNEL.search(name, 0, 1024) is not None
        self.is_serving |= event_names.SERVING.search(name, 0, 1024) is not None
        return event_names.COMMUNICATION.search(name, 0, 256) is not None

    def _take_launch(self, event: Event) -> None:
        name = self._name(event)
        self.is_amd = self.is_amd or name.startswith("hip")
        if not event_names.GPU_LAUNCH.search(name):
            return
        correlation = integer(self._args(event).correlation)
        if correlation < 0:
            return
        if len(self._launches) >= MAX_LAUNCHES * len(_LAUNCH_COLUMNS):
            self._refuse(f"has more than {MAX_LAUNCHES:,} launches: profile fewer steps")
        start_ns, _ = self._times(event)
        self._launches.extend((correlation, start_ns, self._lane(event.tid)))

    def _take_gpu_annotation(self, event: Event) -> None:
        step = event_names.step_number(self._name(event))
        if step is not None:
            self._keep()
            self._add_step(GPU, step, event)

    def _take_host_op(self, is_kept: Callable[[str], bool], event: Event) -> None:
        self.num_ops += 1
        self._take_range(is_kept, event)

    def _take_range(self, is_kept: Callable[[str], bool], event: Event) -> None:
        name = self._name(event)
        if not is_kept(name):
            return
        if name == event_names.COMMUNICATION_OP:
            args = self._args(event)
            collective = _collective(args)
            if collective is not None and collective.kind not in ("wait", "init"):
                self._keep()
                self._add_range(COMM, collective, event, _external_id(args))
            return
        self._keep()
        step = event_names.step_number(name)
        if step is None:
            self._add_range(HOST, name[:MAX_NAME_CHARS], event, -1)
        else:
            self._add_step(HOST, step, event)

    def _is_kept(self, name: str) -> bool:
        """Whether ranges of this name are read."""
        if _KEPT.match(name):
            self.is_training |= event_names.OPTIMIZER.match(name) is not None
            return True
        self.is_training |= event_names.TRAINING_OP.search(name) is not None
        self.is_serving |= event_names.SERVING.search(name, 0, 1024) is not None
        return False

    def _keep(self) -> None:
        self._num_kept += 1
        if self._num_kept > MAX_MARKS:
            self._refuse(f"has more than {MAX_MARKS:,} steps and collectives: profile fewer steps")

    def _args(self, event: Event) -> _Args:
        raw = bytes(event.args)
        return self._decoded(_ARGS, raw) if raw and raw != b"null" else _Args()


def _cached(predicate: Callable[[str], bool]) -> Callable[[str], bool]:
    """The predicate with a cache for names that are not too long."""
    cached = lru_cache(_MAX_NAMES)(predicate)
    return lambda name: cached(name) if len(name) <= MAX_NAME_CHARS else predicate(name)


def _as_rows(values: "array[int]", columns: Sequence[str]) -> Rows:
    dtype = np.dtype([(name, "i8") for name in columns])
    return np.frombuffer(values, dtype) if values else np.empty(0, dtype)


def _collective(args: _Args) -> Collective | None:
    """The collective in the args, if any."""
    if args.collective.__class__ is not str:
        return None
    group = args.group if isinstance(args.group, str | int) else ""
    description = args.description if isinstance(args.description, str) else ""
    return Collective(
        args.collective[:MAX_NAME_CHARS],
        str(group)[:MAX_NAME_CHARS],
        description[:MAX_NAME_CHARS],
        _ranks(args),
        integer(args.group_size),
        integer(args.source),
        integer(args.target),
        _num_bytes(args),
    )


def _ranks(args: _Args) -> tuple[int, ...]:
    """Global ranks of the group, ascending; empty if the list is truncated."""
    size = integer(args.group_size)
    ranks = args.ranks
    if isinstance(ranks, str) and len(ranks) < 1 << 20 and _RANKS_AS_TEXT.match(ranks):
        ranks = [int(rank) for rank in ranks[1:-1].split(",") if rank.strip()]
    if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
        if size in (-1, len(ranks)) and min(ranks) >= 0:
            return tuple(sorted(set(ranks)))
        return ()
    first, stride = integer(args.first_rank), integer(args.stride)
    if first >= 0 and stride >= 1 and 1 <= size <= 1 << 16:
        return tuple(range(first, first + size * stride, stride))
    return ()


def _num_blocks(grid: object) -> int:
    """Number of blocks in a kernel's grid, -1 if unknown."""
    if not isinstance(grid, list) or len(grid) != 3:
        return -1
    is_valid = all(type(size) is int and 0 < size < 1 << 31 for size in grid)
    return min(prod(grid), _MAX_ELEMENTS) if is_valid else -1


def _num_bytes(args: _Args) -> int:
    elements = max(integer(args.num_in), integer(args.num_out))
    item = event_names.ITEM_BYTES.get(str(args.dtype).lower()[:40])
    return elements * item if item and 0 < elements <= _MAX_ELEMENTS else -1


def _external_id(args: _Args) -> int:
    return integer(args.old_external_id if args.external_id is None else args.external_id)
