"""Spans of steps that are not over yet, in bounded memory, for each rank of each run."""

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from app.trace.names import project_of
from app.trace.readers.otlp_waiting import WaitingSpans

MAX_HELD = 400_000  # spans in one process, some 250 bytes each
SHARE_OF_PROJECT = 0.5  # whatever one project sends, another's spans are held
MAX_HELD_OF_RANK = 10_000  # a step of a rank has hundreds

RankKey = tuple[str, str, int]  # job's key, run, global rank


@dataclass(slots=True, eq=False)
class Held:
    """One rank's spans; `lock` is held while they are looked at, across what is waited for."""

    waiting: WaitingSpans = field(default_factory=WaitingSpans)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: int = 0


class HeldSpans:
    """What each rank's unfinished step has so far; who has not sent for longest is forgotten first.

    Call from the event loop. What is lost with the process, or forgotten, are steps that the
    consumer then says were not reported.
    """

    def __init__(self, *, most: int = MAX_HELD) -> None:
        self._most = most
        self._ranks: OrderedDict[RankKey, Held] = OrderedDict()
        self._of_project: Counter[str] = Counter()

    @property
    def num_spans(self) -> int:
        """Number of spans that are held."""
        return self._of_project.total()

    def of(self, key: RankKey) -> Held:
        """The spans of a rank, from now on the last to be forgotten."""
        held = self._ranks.get(key)
        if held is None:
            held = self._ranks[key] = Held()
        self._ranks.move_to_end(key)
        return held

    def count(self, key: RankKey, held: Held) -> None:
        """Look again how many spans the rank has, and forget what has become too many."""
        if self._ranks.get(key) is not held:  # forgotten while somebody waited
            return
        if len(held.waiting.spans) > MAX_HELD_OF_RANK:
            held.waiting.spans.clear()
        project = project_of(key[0])
        # An empty one has a place of its own, too: ranks are made up as easily as spans.
        now = len(held.waiting.spans) + 1
        self._of_project[project] += now - held.counted
        held.counted = now
        while self._of_project[project] > SHARE_OF_PROJECT * self._most:
            self._forget(next(each for each in self._ranks if project_of(each[0]) == project))
        while self.num_spans > self._most:
            self._forget(next(iter(self._ranks)))

    def _forget(self, key: RankKey) -> None:
        held = self._ranks.pop(key)
        project = project_of(key[0])
        self._of_project[project] -= held.counted
        if not self._of_project[project]:
            del self._of_project[project]
        held.counted = 0
