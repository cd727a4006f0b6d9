"""Packs documents into the micro-batches of a step, so that all take equally long.

`OutlierPacker` is the method of WLB-LLM (Wang et al., OSDI 2025, algorithm 1): micro-batches of
variable length, and queues in which the longest documents wait until each micro-batch of a step can
have one.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

from app.errors import InvalidRequest


class Document(NamedTuple):
    """A document: its length in tokens, its number in the data set, and the step it came with."""

    tokens: int
    number: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """What a document costs, in any unit: W_l = per_token x d and W_a = per_square x d^2."""

    per_token: float
    per_square: float

    def __post_init__(self) -> None:
        if self.per_token < 0 or self.per_square < 0 or not self.per_token + self.per_square > 0:
            raise InvalidRequest("a workload grows with tokens, with their squares, or with both")

    def of(self, tokens: int) -> float:
        """Cost of one document of this length."""
        return self.per_token * tokens + self.per_square * tokens * tokens

    def of_all(self, documents: Iterable[Document]) -> float:
        """Cost of a micro-batch."""
        return sum(self.of(each.tokens) for each in documents)


def imbalance(workloads: Sequence[float]) -> float:
    """The largest micro-batch over the mean of its step; 1.0 is perfect balance.

    WLB-LLM's Max_Latency x PP_size / Total_Latency, with as many micro-batches as stages.
    """
    total = sum(workloads)
    return max(workloads) * len(workloads) / total if total > 0 else 1.0


class MicroBatches:
    """The micro-batches of one step while they are filled; at most `max_tokens` in each."""

    def __init__(self, number: int, max_tokens: int, workload: Workload) -> None:
        self.documents: list[list[Document]] = [[] for _ in range(number)]
        self._work, self._tokens = [0.0] * number, [0] * number
        self._max_tokens, self._workload = max_tokens, workload
        # Entries of a micro-batch that grew since are stale, and dropped when they come up.
        self._by_work = [(0.0, microbatch) for microbatch in range(number)]
        self._by_tokens: list[tuple[float, int]] = [(0, microbatch) for microbatch in range(number)]

    def add(self, document: Document) -> bool:
        """Put it where the work is least, else where the tokens are; False if it fits in neither.

        Where it fits in the shortest micro-batch at all, it fits in one of them.
        """
        least = self._least(self._by_work, self._work)
        if not self._fits(document, least):
            least = self._least(self._by_tokens, self._tokens)
            if not self._fits(document, least):
                return False
        self._put(document, least)
        return True

    def _fits(self, document: Document, at: int) -> bool:
        return self._tokens[at] + document.tokens <= self._max_tokens

    def _put(self, document: Document, at: int) -> None:
        self.documents[at].append(document)
        self._work[at] += self._workload.of(document.tokens)
        self._tokens[at] += document.tokens
        heapq.heappush(self._by_work, (self._work[at], at))
        heapq.heappush(self._by_tokens, (self._tokens[at], at))

    @staticmethod
    def _least(by_amount: list[tuple[float, int]], now: Sequence[float]) -> int:
        while by_amount[0][0] != now[by_amount[0][1]]:
            heapq.heappop(by_amount)
        return by_amount[0][1]


@dataclass
class OutlierPacker:
    """Packs one global batch after the other; holds the documents that wait.

    `thresholds` L_1 < L_2 < ... are the least tokens of a document in each queue. A queue with as
    many documents as there are micro-batches releases that many, first in, first out, once a step.
    A document that no micro-batch has room for is carried to the next step and comes first there.
    """

    workload: Workload
    num_microbatches: int
    max_tokens: int
    thresholds: tuple[int, ...] = ()
    step: int = 0
    carried: list[Document] = field(default_factory=list)
    queues: tuple[deque[Document], ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.num_microbatches < 1:
            raise InvalidRequest(f"{self.num_microbatches} micro-batches: a step has at least 1")
        if any(one >= other for one, other in pairwise(self.thresholds)):
            raise InvalidRequest("the thresholds of the queues do not ascend: give L_1 < L_2 < ...")
        self.queues = tuple(deque() for _ in self.thresholds)

    def pack(self, documents: Iterable[Document]) -> list[list[Document]]:
        """Micro-batches of the next step, from a global batch and what was waiting.

        Raises:
            InvalidRequest: a document is longer than a micro-batch may be.
        """
        new = self._admit(documents)
        for queue in self.queues:
            if len(queue) >= self.num_microbatches:
                new += [queue.popleft() for _ in range(self.num_microbatches)]
        new.sort(key=lambda document: -document.tokens)
        microbatches = MicroBatches(self.num_microbatches, self.max_tokens, self.workload)
        waiting, self.carried = self.carried + new, []
        for document in waiting:
            if not microbatches.add(document):
                self.carried.append(document)
        self.step += 1
        return microbatches.documents

    def _admit(self, documents: Iterable[Document]) -> list[Document]:
        """Put outliers into their queues; the others."""
        new = list[Document]()
        for document in documents:
            if document.tokens > self.max_tokens:
                raise InvalidRequest(
                    f"document {document.number} has {document.tokens} tokens: a micro-batch has "
                    f"at most {self.max_tokens}"
                )
            level = bisect_right(self.thresholds, document.tokens)
            (self.queues[level - 1] if level else new).append(document)
        return new


def loader_batches(
    lengths: Iterator[int], num_steps: int, num_microbatches: int, max_tokens: int
) -> list[list[list[Document]]]:
    """Steps of micro-batches as a loader packs them: documents in order, the last one cut off.

    Every micro-batch has `max_tokens` tokens. `lengths` must not end before.
    """
    number, steps = 0, []
    for step in range(num_steps):
        microbatches = []
        for _ in range(num_microbatches):
            documents, room = list[Document](), max_tokens
            while room:
                tokens = min(next(lengths), room)
                documents.append(Document(tokens, number, step))
                number, room = number + 1, room - tokens
            microbatches.append(documents)
        steps.append(microbatches)
    return steps


def flat(batches: Iterable[Iterable[Iterable[Document]]]) -> list[list[Document]]:
    """The documents of each step, whatever micro-batch they are in."""
    return [[each for microbatch in batch for each in microbatch] for batch in batches]


class PackingQuality(NamedTuple):
    """Mean imbalance of the steps, and steps that a token waits on average."""

    imbalance: float
    delay_steps: float


def quality_of(packer: OutlierPacker, batches: Iterable[Sequence[Document]]) -> PackingQuality:
    """Pack these global batches and measure; documents must carry the step of their batch.

    Delay counts the documents that were packed.
    """
    found, delay, tokens = [], 0, 0
    for batch in batches:
        step = packer.step
        packed = packer.pack(batch)
        found.append(imbalance([packer.workload.of_all(each) for each in packed]))
        for document in (each for microbatch in packed for each in microbatch):
            delay += document.tokens * (step - document.step)
            tokens += document.tokens
    return PackingQuality(sum(found) / max(len(found), 1), delay / max(tokens, 1))


def choose_thresholds(
    batches: Sequence[Sequence[Document]],
    workload: Workload,
    num_microbatches: int,
    max_tokens: int,
    num_queues: int,
    *,
    max_delay_steps: float = 0.5,
    candidates: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Thresholds with the best balance on these global batches at a low delay (WLB-LLM, 4.2).

    Candidates are by default eighths of the longest document. Of those above the delay, that of
    least delay is taken.
    """
    if candidates is None:
        longest = max((each.tokens for batch in batches for each in batch), default=1)
        candidates = sorted({max(1, longest * eighth // 8) for eighth in range(1, 8)})
    found = []
    for thresholds in combinations(candidates, num_queues):
        packer = OutlierPacker(workload, num_microbatches, max_tokens, thresholds)
        quality = quality_of(packer, batches)
        excess = max(0.0, quality.delay_steps - max_delay_steps)
        found.append((excess, quality.imbalance, thresholds))
    if not found:
        raise InvalidRequest(
            f"{len(candidates)} candidates are too few for {num_queues} thresholds"
        )
    return min(found)[2]


# `OutlierPacker` as Python to paste into a training's loader, without imports; a test runs both.
PACKER = '''\
class Packer:
    """pack(documents) once a step: micro-batches of (tokens, document) pairs of like work."""

    def __init__(self):
        self.limits = {thresholds}
        self.queues = [[] for _ in self.limits]
        self.carried = []

    def pack(self, documents, n={num_microbatches}, most={max_tokens}):
        new = []
        for doc in documents:
            level = sum(doc[0] >= limit for limit in self.limits)
            (self.queues[level - 1] if level else new).append(doc)
        for queue in self.queues:  # outliers wait until each micro-batch can have one
            if len(queue) >= n:
                new += queue[:n]
                del queue[:n]
        new.sort(key=lambda doc: -doc[0])
        waiting, self.carried = self.carried + new, []
        batches, work, tokens = [[] for _ in range(n)], [0.0] * n, [0] * n
        for doc in waiting:
            at = min(range(n), key=lambda i: work[i])
            if tokens[at] + doc[0] > most:
                at = min(range(n), key=lambda i: tokens[i])
            if tokens[at] + doc[0] > most:
                self.carried.append(doc)  # comes first in the next step
                continue
            batches[at].append(doc)
            tokens[at] += doc[0]
            work[at] += {per_token} * doc[0] + {per_square} * doc[0] ** 2
        return batches
'''
