"""One rank's collectives: each communication kernel with its group, kind, step and order.

Newer files have the collective and group in a kernel's args. Kernels without them
are joined to what the host was doing when it launched them: a collective with the same external
id, the sends and receives that were coalesced before, or an annotation such as `nccl:all_to_all`.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from app.trace.readers.profiles import event_names
from app.trace.readers.profiles.event_names import COALESCED
from app.trace.readers.profiles.events import (
    COMMUNICATING,
    CollectiveArgs,
    HostCollective,
    HostMark,
    ProfileEvents,
)
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class RankCollective:
    """One communication kernel inside a step (an index).

    `calls` are what it carries out: one collective, or the sends and receives that were coalesced;
    a kind of "" is not known. `order_ns` is when the host launched it, its start where that is not
    known.
    """

    calls: tuple[CollectiveArgs, ...]
    step: int
    stream: int
    order_ns: int
    start_ns: int
    end_ns: int


def collectives_of(events: ProfileEvents, step: Ints, launch_ns: Ints) -> list[RankCollective]:
    """All communication kernels that are in a step, in the order of their launches.

    `step` and `launch_ns` are [kernels], -1 for none.
    """
    kind = np.asarray(events.kind, np.int8)
    chosen = np.flatnonzero((kind == COMMUNICATING) & (step >= 0))
    on_host = _HostCalls(events)
    thread_of = dict(zip(events.launch_correlation, events.launch_thread, strict=True))
    thread_names = {number: name for name, number in events.threads.items()}
    found = []
    for kernel in chosen.tolist():
        calls: tuple[CollectiveArgs, ...] = (events.collectives[events.comm[kernel]],)
        launched_ns = int(launch_ns[kernel])
        if not calls[0].group and not calls[0].ranks and launched_ns >= 0:
            thread = thread_names.get(thread_of.get(events.correlation[kernel], -1), "")
            calls = on_host.calls(events.external_id[kernel], thread, launched_ns) or calls
        start_ns = events.start_ns[kernel]
        found.append(
            RankCollective(
                calls,
                int(step[kernel]),
                events.stream[kernel],
                launched_ns if launched_ns >= 0 else start_ns,
                start_ns,
                start_ns + events.duration_ns[kernel],
            )
        )
    return sorted(found, key=lambda each: (each.order_ns, each.start_ns))


class _HostCalls:
    """The host calls that launched communication kernels."""

    def __init__(self, events: ProfileEvents) -> None:
        self._by_id = {
            each.external_id: each for each in events.host_collectives if each.external_id >= 0
        }
        self._calls: dict[str, list[HostCollective]] = defaultdict(list)
        for each in sorted(events.host_collectives, key=lambda each: each.start_ns):
            self._calls[each.thread].append(each)
        self._marks: dict[str, list[HostMark]] = defaultdict(list)
        self._coalesced: dict[str, list[HostMark]] = defaultdict(list)
        for mark in sorted(events.annotated, key=lambda mark: mark.start_ns):
            is_coalesced = mark.name.startswith(COALESCED)
            (self._coalesced if is_coalesced else self._marks)[mark.thread].append(mark)

    def calls(self, external_id: int, thread: str, at_ns: int) -> tuple[CollectiveArgs, ...]:
        """The calls behind a launch; empty if there is none."""
        if (found := self._by_id.get(external_id)) is not None:
            return (found.args,)
        marks = self._coalesced[thread]
        place = _enclosing(marks, at_ns)
        if place is not None:
            after_ns = marks[place - 1].end_ns if place else -(2**62)
            return self._between(thread, after_ns, marks[place].start_ns)
        calls = self._calls[thread]
        place = _enclosing(calls, at_ns)
        if place is not None:
            return (calls[place].args,)
        marks = self._marks[thread]
        place = _enclosing(marks, at_ns)
        if place is None:
            return ()
        name = event_names.annotated_collective(marks[place].name) or ""
        return (CollectiveArgs(event_names.kind_of(name.split(" ")[0])),)

    def _between(self, thread: str, after_ns: int, until_ns: int) -> tuple[CollectiveArgs, ...]:
        """Calls that began after one coalesced launch and until the next."""
        calls = self._calls[thread]
        first = bisect_right(calls, after_ns, key=lambda each: each.start_ns)
        last = bisect_right(calls, until_ns, key=lambda each: each.start_ns)
        inside = [each.args for each in calls[first:last]]
        # What was launched on its own since then has a kernel of its own.
        coalesced = [each for each in inside if each.kind in ("send", "recv")] or inside
        return tuple(_without_repeats(coalesced))


def _without_repeats(calls: list[CollectiveArgs]) -> list[CollectiveArgs]:
    """Merge calls of the same kind and peers, summing bytes."""
    found: dict[CollectiveArgs, int] = {}
    for each in calls:
        key = each._replace(num_bytes=-1)
        before = found.get(key, 0)
        found[key] = -1 if each.num_bytes < 0 or before < 0 else before + each.num_bytes
    return [each._replace(num_bytes=num_bytes) for each, num_bytes in found.items()]


def _enclosing(ranges: list[HostMark] | list[HostCollective], at_ns: int) -> int | None:
    """Index of the innermost range open at that time."""
    place = bisect_right(ranges, at_ns, key=lambda each: each.start_ns) - 1
    return place if place >= 0 and at_ns <= ranges[place].end_ns else None
