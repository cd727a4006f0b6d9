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
from itertools import chain, combinations, pairwise
from typing import NamedTuple

from app.errors import InvalidRequest


class Document(NamedTuple):
    """A document: its length in tokens, its number in the data set, and the step it came with."""

    tokens: int
    number: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """Cost of a document, in any unit: W_l = per_token x d and W_a = per_square x d^2."""

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
        return sum(self.of(document.tokens) for document in documents)


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
        self.documents[least].append(document)
        self._work[least] += self._workload.of(document.tokens)
        self._tokens[least] += document.tokens
        heapq.heappush(self._by_work, (self._work[least], least))
        heapq.heappush(self._by_tokens, (self._tokens[least], least))
        return True

    def _fits(self, document: Document, at: int) -> bool:
        return self._tokens[at] + document.tokens <= self._max_tokens

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
) -> list[list[Document]]:
    """The documents of each step as a loader packs them into micro-batches of `max_tokens` tokens.

    Documents come in order; the last one of a micro-batch is cut off. `lengths` must suffice.
    """
    number, steps = 0, []
    for step in range(num_steps):
        documents = list[Document]()
        for _ in range(num_microbatches):
            room = max_tokens
            while room:
                tokens = min(next(lengths), room)
                documents.append(Document(tokens, number, step))
                number, room = number + 1, room - tokens
        steps.append(documents)
    return steps


class PackingQuality(NamedTuple):
    """Mean imbalance of the steps, and steps that a token waits on average.

    The imbalance of a step is its largest micro-batch over their mean, 1.0 is perfect balance:
    WLB-LLM's Max_Latency x PP_size / Total_Latency, with as many micro-batches as stages.
    """

    imbalance: float
    delay_steps: float


def quality_of(packer: OutlierPacker, batches: Iterable[Sequence[Document]]) -> PackingQuality:
    """Pack these global batches and measure; documents must carry the step of their batch.

    Delay counts the documents that were packed.
    """
    imbalances, delay, tokens = [], 0, 0
    for batch in batches:
        step = packer.step
        packed = packer.pack(batch)
        work = [packer.workload.of_all(documents) for documents in packed]
        imbalances.append(max(work) * len(work) / sum(work) if sum(work) > 0 else 1.0)
        for document in chain.from_iterable(packed):
            delay += document.tokens * (step - document.step)
            tokens += document.tokens
    return PackingQuality(sum(imbalances) / max(len(imbalances), 1), delay / max(tokens, 1))


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
        longest = max((document.tokens for batch in batches for document in batch), default=1)
        candidates = sorted({max(1, longest * eighth // 8) for eighth in range(1, 8)})
    tried = []
    for thresholds in combinations(candidates, num_queues):
        packer = OutlierPacker(workload, num_microbatches, max_tokens, thresholds)
        quality = quality_of(packer, batches)
        excess = max(0.0, quality.delay_steps - max_delay_steps)
        tried.append((excess, quality.imbalance, thresholds))
    if not tried:
        raise InvalidRequest(
            f"{len(candidates)} candidates are too few for {num_queues} thresholds"
        )
    return min(tried)[2]


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
