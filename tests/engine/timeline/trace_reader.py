"""A timeline read back, and what a viewer would find wrong with it."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from app.engine.timeline.writer import STEPS_PROCESS


@dataclass(frozen=True)
class Slice:
    """One slice, in whole nanoseconds, with the names of its process and its track."""

    process: str
    track: str
    name: str
    start_ns: int
    length_ns: int
    arguments: dict[str, Any]

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


@dataclass(frozen=True)
class Timeline:
    """Slices of workers, those of whole steps, and where steps are marked to begin."""

    operations: list[Slice]
    steps: list[Slice]
    marks: list[tuple[str, int]]

    def of(self, process: str) -> list[Slice]:
        """Operations of one process, by start."""
        found = [each for each in self.operations if each.process == process]
        return sorted(found, key=lambda each: (each.start_ns, each.end_ns))


def read(pieces: Iterator[bytes]) -> Timeline:
    """The file that these pieces make."""
    document = json.loads(gzip.decompress(b"".join(pieces)), parse_float=Decimal)
    events = document["traceEvents"]
    names = _names(events)
    slices = [
        (event["pid"], _slice(event, names[event["pid"], 0], names[event["pid"], event["tid"]]))
        for event in events
        if event["ph"] == "X"
    ]
    return Timeline(
        [each for process, each in slices if process != STEPS_PROCESS],
        [each for process, each in slices if process == STEPS_PROCESS],
        [(event["name"], _ns(event["ts"])) for event in events if event["ph"] == "i"],
    )


def overlaps(slices: list[Slice]) -> list[tuple[Slice, Slice]]:
    """Slices of one track that a viewer could not draw beside each other."""
    tracks: dict[tuple[str, str], list[Slice]] = defaultdict(list)
    for each in slices:
        tracks[each.process, each.track].append(each)
    found = []
    for track in tracks.values():
        track.sort(key=lambda each: (each.start_ns, each.end_ns))
        for before, after in pairwise(track):
            if after.start_ns < before.end_ns or after.start_ns == before.start_ns:
                found.append((before, after))
    return found


def _names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    named: dict[tuple[int, int], str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
            key = (event["pid"], event["tid"])
            assert key not in named, "named twice"
            named[key] = event["args"]["name"]
    return named


def _slice(event: dict[str, Any], process: str, track: str) -> Slice:
    start_ns, length_ns = _ns(event["ts"]), _ns(event["dur"])
    return Slice(process, track, event["name"], start_ns, length_ns, event["args"])


def _ns(microseconds: Decimal | int) -> int:
    nanoseconds = microseconds * 1000
    assert nanoseconds == int(nanoseconds), "finer than a nanosecond"
    return int(nanoseconds)
