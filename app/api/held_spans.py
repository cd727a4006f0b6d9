"""Spans of steps that are not over yet, in bounded memory, for each rank of each run."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.trace.names import project_of
from app.trace.readers.otlp_span import Span
from app.trace.readers.otlp_waiting import WaitingSpans

MAX_HELD = 250_000  # spans in one process, some 400 bytes each
SHARE_OF_PROJECT = 0.5  # whatever one project sends, another's spans are held
MAX_HELD_OF_RANK = 10_000  # a step of a rank has hundreds
_TAKEN_AS_ONE = 50  # ids of spans that are taken, 8 bytes each, count as one that is held

RankKey = tuple[str, str, int]  # job's key, run, global rank


@dataclass(slots=True, eq=False)
class Held:
    """One rank's spans; `lock` is held while they are looked at, across what is waited for."""

    waiting: WaitingSpans = field(default_factory=WaitingSpans)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    counted: int = 0
    _taken: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, spans: Iterable[Span]) -> int:
        """How many came too late, besides those that were taken: these are sent again."""
        late = [span.span_id for span in spans if not self.waiting.add(span)]
        taken = set(self._taken) if late else set()
        return sum(hash(each) not in taken for each in late)

    def took(self, span_ids: Iterable[str]) -> None:
        """These are in the queue: of a request that another rank of it failed they come again."""
        self._taken = array("q", map(hash, span_ids))[-MAX_HELD_OF_RANK:]

    @property
    def size(self) -> int:
        """How much there is, in spans; an empty one has a place of its own, too.

        Ranks are made up as easily as spans.
        """
        return len(self.waiting.spans) + 1 + len(self._taken) // _TAKEN_AS_ONE


@dataclass(slots=True)
class _Project:
    ranks: OrderedDict[RankKey, None] = field(default_factory=OrderedDict)
    num_spans: int = 0


class HeldSpans:
    """What each rank's unfinished step has so far; who has not sent for longest is forgotten first.

    Call from the event loop. What is lost with the process, or forgotten, are steps that the
    consumer then says were not reported.
    """

    def __init__(self, *, most: int = MAX_HELD, most_of_rank: int = MAX_HELD_OF_RANK) -> None:
        self._most = most
        self.most_of_rank = most_of_rank
        self._ranks: OrderedDict[RankKey, Held] = OrderedDict()
        self._projects: dict[str, _Project] = {}
        self.num_spans = 0

    def of(self, key: RankKey) -> Held:
        """The spans of a rank, from now on the last to be forgotten."""
        held = self._ranks.get(key)
        project = self._projects.setdefault(project_of(key[0]), _Project())
        if held is None:
            held = self._ranks[key] = Held()
            project.ranks[key] = None
        self._ranks.move_to_end(key)
        project.ranks.move_to_end(key)
        return held

    def count(self, key: RankKey, held: Held) -> int:
        """Look again how many spans the rank has, and forget what has become too many.

        Returns how many of this rank are forgotten as one step has more than are held.
        """
        if self._ranks.get(key) is not held:  # forgotten while somebody waited
            return 0
        cleared = 0
        if len(held.waiting.spans) > self.most_of_rank:
            cleared = len(held.waiting.spans)
            held.waiting.spans.clear()
        project = self._projects[project_of(key[0])]
        self._count(project, held, held.size)
        while project.num_spans > SHARE_OF_PROJECT * self._most:
            self._forget(next(iter(project.ranks)))
        while self.num_spans > self._most:
            self._forget(next(iter(self._ranks)))
        return cleared

    def _count(self, project: _Project, held: Held, size: int) -> None:
        project.num_spans += size - held.counted
        self.num_spans += size - held.counted
        held.counted = size

    def _forget(self, key: RankKey) -> None:
        name = project_of(key[0])
        project = self._projects[name]
        self._count(project, self._ranks.pop(key), 0)
        del project.ranks[key]
        if not project.ranks:
            del self._projects[name]
