"""Records every group's collectives from PyTorch's flight recorder.

    from paceline_client.integrations import flight_recorder

    recorder = paceline_client.start(..., groups=True)
    flight_recorder.attach(recorder)

Attach on every rank. With NCCL, set `TORCH_NCCL_ENABLE_TIMING=1`, so that PyTorch measures how long
each collective took on this rank. The model is not touched: the sender's thread reads the flight
recorder after each step in which groups are recorded. It has durations, but no start times.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..recording.groups import GroupBuffer
from ..recording.wire import NO_GROUP, Group

POLL_EVERY_S = 1.0
GIVE_UP_S = 60.0  # a collective that has not ended by then is skipped
MAX_STEPS = 16  # ended steps that have not been read
MAX_DUMP_CHARS = 64 << 20
ENTRIES_AT_ONCE = 64  # parsed without releasing the interpreter
MS = 1e6

OVERWRITTEN = "overwritten in PyTorch's flight recorder"
UNFINISHED = "not finished in PyTorch's flight recorder"

log = logging.getLogger("paceline_client")
_DECODER = json.JSONDecoder()
# A group's axis by words in its description, as DeviceMesh and Megatron-LM name them.
_AXIS_WORDS = (
    ("tp", ("tp", "tensor", "tensor_parallel")),
    ("cp", ("cp", "context", "sp", "sequence")),
    ("ep", ("ep", "expert")),
    ("pp", ("pp", "pipeline", "pipe")),
    ("dp", ("dp", "ddp", "fsdp", "data", "replicate", "shard")),
)


def attach(recorder: Any, *, axes: Mapping[str, str] | None = None) -> bool:
    """Record all groups' collectives from now on; returns whether there is a flight recorder.

    `axes` maps descriptions of process groups to axes ("tp", "cp", "ep", "dp" or "pp"), for those
    whose description does not name the axis.
    """
    try:
        return bool(recorder.read_collectives(FlightRecorder(_dump(), _ranks_by_name, axes or {})))
    except Exception as error:
        log.warning("paceline: PyTorch's flight recorder is not read: %s", error)
        return False


class Interval(NamedTuple):
    """A step in which groups are recorded, by the flight recorder's clock."""

    step: int
    begun_ns: int
    ended_ns: int


class FlightRecorder:
    """Reads the flight recorder's buffer on the sender's thread.

    `dump` returns its content as JSON; `ranks_by_name` the global ranks by process group, for
    backends whose dump does not have them.
    """

    def __init__(
        self,
        dump: Callable[[], Any],
        ranks_by_name: Callable[[], Mapping[str, list[int]]],
        axes: Mapping[str, str],
    ) -> None:
        self._dump = dump
        self._ranks_by_name = ranks_by_name
        self._axes = axes
        self._ended: list[Interval] = []  # appended to by training
        self._next_poll_s = 0.0
        self._last_id = -1
        self._groups: dict[str, Group] = {}  # by the process group's name
        self._warned: set[str] = set()
        self.is_over = False

    def step_ended(self, step: int, begun_ns: int, ended_ns: int) -> None:
        """Training has left a step in which groups are recorded."""
        if len(self._ended) < MAX_STEPS and not self.is_over:
            self._ended.append(Interval(step, begun_ns, ended_ns))

    @property
    def has_unread(self) -> bool:
        """Whether a step has ended whose collectives have not been read."""
        return bool(self._ended)

    def poll(self, groups: GroupBuffer) -> None:
        """Read the collectives of ended steps, if a read is due."""
        if not self._ended or self.is_over:
            return
        now_s = time.monotonic()
        if now_s < self._next_poll_s:
            return
        self._next_poll_s = now_s + POLL_EVERY_S
        ended = list(self._ended)  # the dump may hold only a part of later steps
        text = self._dump()
        text = text.decode() if isinstance(text, bytes) else text
        if len(text) > MAX_DUMP_CHARS:
            self._stop("its dump is too large")
            return
        entries, about = parsed(text)
        self._count_overwritten(ended, entries, groups)
        waiting = [each for each in ended if not self._read(each, entries, about, groups)]
        if not self._ended:  # reading has stopped
            return
        self._ended[: len(ended)] = waiting
        # Later entries may belong to steps that are not read yet, and must count if overwritten.
        done_ns = min([each.begun_ns for each in waiting] or [max(each.ended_ns for each in ended)])
        done = (_id(entry) for entry in entries if _number(entry, "time_created_ns") < done_ns)
        self._last_id = max([self._last_id, *done])

    def _read(
        self,
        interval: Interval,
        entries: list[dict[str, Any]],
        about: Mapping[str, Any],
        groups: GroupBuffer,
    ) -> bool:
        """Whether a step is finished: its collectives have ended, or `GIVE_UP_S` is over."""
        mine = [
            entry
            for entry in entries
            if interval.begun_ns <= _number(entry, "time_created_ns") < interval.ended_ns
        ]
        is_late = time.time_ns() - interval.ended_ns > GIVE_UP_S * 1e9
        if not is_late and not all(entry.get("retired") for entry in mine):
            return False
        timed = [entry for entry in mine if _duration_ns(entry) is not None]
        if mine and not timed:
            self._stop(
                "its collectives have no durations: with NCCL, set TORCH_NCCL_ENABLE_TIMING=1; "
                "gloo has none"
            )
            return True
        for entry in mine:
            self._take(interval.step, entry, about, groups)
        return True

    def _count_overwritten(
        self, ended: list[Interval], entries: list[dict[str, Any]], groups: GroupBuffer
    ) -> None:
        """Count overwritten entries of these steps, by gaps in the ids."""
        if not entries:
            return
        oldest = min(entries, key=_id)
        num_lost = _id(oldest) - self._last_id - 1
        begun_ns = min(interval.begun_ns for interval in ended)
        self._last_id = max(self._last_id, _id(oldest) - 1)  # count each only once
        if num_lost > 0 and _number(oldest, "time_created_ns") > begun_ns:
            groups.drop(OVERWRITTEN, num_lost)
            self._warn(
                "has overwritten collectives before they could be read: raise TORCH_FR_BUFFER_SIZE"
            )

    def _take(
        self, step: int, entry: dict[str, Any], about: Mapping[str, Any], groups: GroupBuffer
    ) -> None:
        if entry.get("is_p2p"):  # its two ranks number it differently
            return
        kind = kind_of(entry.get("profiling_name"))
        duration_ns = _duration_ns(entry)
        group = self._group(entry, about, groups)
        if not kind or group.at < 0:
            return
        if duration_ns is None:
            groups.drop(UNFINISHED)
            return
        sequence = _number(entry, "collective_seq_id")
        if groups.has_room(step):
            groups.add((step, group.at, kind, sequence, -1, duration_ns, _bytes(entry)))

    def _group(self, entry: dict[str, Any], about: Mapping[str, Any], groups: GroupBuffer) -> Group:
        named = entry.get("process_group")
        name, description = named if isinstance(named, list) and len(named) == 2 else ("", "")
        if name not in self._groups:
            self._groups[name] = self._declared(str(name), str(description), about, groups)
        return self._groups[name]

    def _declared(
        self, name: str, description: str, about: Mapping[str, Any], groups: GroupBuffer
    ) -> Group:
        ranks = _configured_ranks(about, name) or self._ranks_by_name().get(name) or []
        if len(ranks) < 2:  # a single rank waits for no other; or the ranks are unknown
            return NO_GROUP
        shown = description if description not in ("", "undefined") else "group"
        shown = "".join(char for char in shown if char.isprintable())[:56]
        # Groups with equal ranks need distinct names; all ranks create them in the same order.
        taken = {each.name for each in self._groups.values() if each.ranks == tuple(ranks)}
        free = (f"{shown} {number}" if number > 1 else shown for number in range(1, 1000))
        unique = next(each for each in free if each not in taken)
        return groups.declare(unique, self._axis(description), ranks, None)

    def _axis(self, description: str) -> str:
        if description in self._axes:
            return self._axes[description]
        words = "".join(char if char.isalnum() else " " for char in description.lower()).split()
        return next((axis for axis, known in _AXIS_WORDS if {*known} & {*words}), "")

    def _stop(self, why: str) -> None:
        self.is_over = True
        self._ended.clear()
        self._warn(f"is no longer read: {why}")

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning("paceline: PyTorch's flight recorder %s", message)


def parsed(text: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A dump's entries, and its other fields; releases the interpreter between entries.

    Raises:
        ValueError: it is not the expected JSON.
    """
    at = text.find('"entries"')
    if at < 0:
        return [], dict(json.loads(text))
    first = text.index("[", at) + 1
    end, entries = first, []
    for entry, after in _objects(text, first):
        entries.append(entry)
        end = after
        if len(entries) % ENTRIES_AT_ONCE == 0:
            time.sleep(0)
    about = json.loads(f"{text[:first]}{text[text.index(']', end) :]}")
    return entries, dict(about)


def _objects(text: str, at: int) -> Iterator[tuple[dict[str, Any], int]]:
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return
        entry, at = _DECODER.raw_decode(text, at)
        if not isinstance(entry, dict):
            raise ValueError("an entry is not an object")
        yield entry, at


def kind_of(profiling_name: Any) -> str:
    """Paceline's name for a kind of collective; "" if it is none.

    "nccl:_all_gather_base" is "all-gather".
    """
    if not isinstance(profiling_name, str):
        return ""
    name = profiling_name.rpartition(":")[2].strip("_").removesuffix("_base").replace("_", "-")
    return "" if name in ("coalesced", "") or name.startswith(("send", "recv")) else name[:64]


def _dump() -> Callable[[], Any]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise RuntimeError("PyTorch has not been imported")
    c10d = torch._C._distributed_c10d
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        found: Callable[[], Any] | None = getattr(c10d, name, None)
        if found is not None:
            return found
    raise RuntimeError("this PyTorch has none; PyTorch 2.5 or newer does")


def _ranks_by_name() -> dict[str, list[int]]:
    """Ranks of this process's groups, from torch.distributed."""
    dist: Any = sys.modules["torch.distributed"]
    world: Any = sys.modules["torch.distributed.distributed_c10d"]._world
    return {
        str(name): [int(rank) for rank in dist.get_process_group_ranks(group)]
        for group, name in dict(world.pg_names).items()
    }


def _configured_ranks(about: Mapping[str, Any], name: str) -> list[int] | None:
    """Ranks of a group from the dump ("[0, 1]"); None if it has none."""
    config = about.get("pg_config")
    group = config.get(name) if isinstance(config, Mapping) else None
    text = group.get("ranks") if isinstance(group, Mapping) else None
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
        return [int(rank) for rank in ranks] if ranks else None
    except (TypeError, ValueError):
        return None


def _id(entry: Mapping[str, Any]) -> int:
    return _number(entry, "record_id")


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) else -1


def _duration_ns(entry: Mapping[str, Any]) -> int | None:
    value = entry.get("duration_ms")
    return round(value * MS) if isinstance(value, (int, float)) and 0 <= value < 1e9 else None


_ITEM_BYTES = {
    **{"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2},
    **{"Char": 1, "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1},
}


def _bytes(entry: Mapping[str, Any]) -> int:
    """Bytes of the larger of input and output; -1 if a type is unknown."""
    try:
        return max(_size(entry, "input"), _size(entry, "output"))
    except (KeyError, TypeError, ValueError):
        return -1


def _size(entry: Mapping[str, Any], side: str) -> int:
    total = 0
    for sizes, dtype in zip(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]):
        number = 1
        for size in sizes:
            number *= int(size)
        total += number * _ITEM_BYTES[dtype]
    return total
