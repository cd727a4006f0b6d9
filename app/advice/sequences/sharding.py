"""Shards a packed micro-batch over context-parallel ranks: per sequence, per document, or adaptive.

Per sequence: the whole micro-batch is cut into 2 CP equal chunks, and rank i takes chunks i and
2 CP - 1 - i. Per document: each document is. The first is uneven where documents end inside chunks,
the second computes many short chunks, which attention kernels do badly. `choose_sharding` predicts
which is faster by a closed form; `AttentionKernel` computes the tiles of a kernel one by
one, to judge the choice. Source: WLB-LLM (Wang et al., OSDI 2025), section 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from app.errors import InvalidRequest
from app.trace.window import Floats, Ints

TILE = 128  # queries, and keys, in a tile of FlashAttention's forward kernel


class Sharding(StrEnum):
    """The way in which a micro-batch is cut."""

    PER_SEQUENCE = "per-sequence"
    PER_DOCUMENT = "per-document"


class Chunk(NamedTuple):
    """Successive queries of one document: `length` tokens after `prefix` tokens of it."""

    prefix: int
    length: int

    @property
    def pairs(self) -> int:
        """Query-key pairs under a causal mask: length x (2 prefix + length + 1) / 2."""
        return self.length * (2 * self.prefix + self.length + 1) // 2


def shard(documents: Sequence[int], cp_size: int, sharding: Sharding) -> list[list[Chunk]]:
    """Chunks of each context-parallel rank; `documents` are the lengths in a micro-batch.

    Every rank gets the same number of tokens, but for what cannot be divided by 2 CP: of that, one
    token at a time goes to one rank after the other.

    Raises:
        InvalidRequest: there is no rank, or a document has no token.
    """
    if cp_size < 1:
        raise InvalidRequest(f"{cp_size} context-parallel ranks: there is at least 1")
    if any(length < 1 for length in documents):
        raise InvalidRequest("a document has no tokens: leave empty ones out")
    if sharding is Sharding.PER_SEQUENCE:
        return _per_sequence(documents, cp_size)
    return _per_document(documents, cp_size)


def _per_sequence(documents: Sequence[int], cp_size: int) -> list[list[Chunk]]:
    total, num_chunks = sum(documents), 2 * cp_size
    bounds = [total * chunk // num_chunks for chunk in range(num_chunks + 1)]
    ranks: list[list[Chunk]] = [[] for _ in range(cp_size)]
    begin, chunk = 0, 0
    for length in documents:
        at = begin
        while at < begin + length:
            while bounds[chunk + 1] <= at:
                chunk += 1
            end = min(begin + length, bounds[chunk + 1])
            ranks[min(chunk, num_chunks - 1 - chunk)].append(Chunk(at - begin, end - at))
            at = end
        begin += length
    return ranks


def _per_document(documents: Sequence[int], cp_size: int) -> list[list[Chunk]]:
    num_chunks, next_rank = 2 * cp_size, 0
    ranks: list[list[Chunk]] = [[] for _ in range(cp_size)]
    for length in documents:
        size = length // num_chunks
        for chunk in range(num_chunks if size else 0):
            ranks[min(chunk, num_chunks - 1 - chunk)].append(Chunk(chunk * size, size))
        for token in range(size * num_chunks, length):
            ranks[next_rank].append(Chunk(token, 1))
            next_rank = (next_rank + 1) % cp_size
    return ranks


def estimated_pairs(chunks: Sequence[Chunk]) -> float:
    """Query-key pairs that a kernel computes for these chunks: whole tiles of queries."""
    if not chunks:
        return 0.0
    prefix, length = _columns(chunks)
    padded = -(-length // TILE) * TILE
    return float((padded * (2 * prefix + padded + 1) / 2).sum())


def choose_sharding(documents: Sequence[int], cp_size: int) -> Sharding:
    """The sharding whose busiest rank computes fewer padded pairs; per sequence if equal."""

    def most_pairs(sharding: Sharding) -> float:
        return max(map(estimated_pairs, shard(documents, cp_size, sharding)))

    return min(Sharding, key=most_pairs)


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A model of one variable-length attention kernel on one GPU.

    A thread block computes one tile of queries of one head against its document's keys, tile by
    tile; blocks run on `num_processors` at once. A pair of tiles takes `tile_s`, or `alone_factor`
    times as long where a chunk has at most one tile of queries, so that no other block shares the
    keys that it loads. `block_s` is a block's prologue and epilogue.
    The defaults are of an H100 with 32 heads of 128: 2^23 FLOPs in a pair at 60 % of the peak.
    """

    num_heads: int = 32
    num_processors: int = 132
    tile_s: float = 1.9e-6
    alone_factor: float = 1.35
    block_s: float = 1.5e-6
    launch_s: float = 8e-6

    def seconds(self, chunks: Sequence[Chunk]) -> float:
        """Seconds of one forward kernel over these chunks.

        Blocks are given to the next free processor, longest first: the time is at least that of the
        longest block, and of all blocks over all processors.
        """
        if not chunks:
            return 0.0
        block_s = self._blocks_s(chunks)
        busy_s = block_s.sum() * self.num_heads / self.num_processors
        return float(self.launch_s + max(busy_s, block_s.max()))

    def slowest_s(self, documents: Sequence[int], cp_size: int, sharding: Sharding) -> float:
        """Seconds of the slowest rank's attention in a layer's forward."""
        return max(map(self.seconds, shard(documents, cp_size, sharding)))

    def _blocks_s(self, chunks: Sequence[Chunk]) -> Floats:
        """[query tiles], seconds of one head's block, tile by tile and chunk by chunk."""
        prefix, length = _columns(chunks)
        tiles = -(-length // TILE)
        chunk = np.repeat(np.arange(length.size), tiles)
        tile = np.arange(chunk.size) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        last_query = prefix[chunk] + np.minimum((tile + 1) * TILE, length[chunk])
        key_tiles = -(-last_query // TILE)
        factor = np.where(tiles == 1, self.alone_factor, 1.0)[chunk]
        return np.asarray(self.block_s + key_tiles * self.tile_s * factor)


def _columns(chunks: Sequence[Chunk]) -> tuple[Ints, Ints]:
    columns = np.array(chunks, np.int64)
    return columns[:, 0], columns[:, 1]


# `choose_sharding` as Python to paste into a training's loader, without imports; a test runs both.
CHOOSE_SHARDING = '''\
def choose_sharding(documents, cp={cp_size}, tile=128):
    """"per-sequence" or "per-document", whichever gives the busiest cp rank less attention.

    Both cut into 2 cp chunks, and rank i takes chunks i and 2 cp - 1 - i: of the whole sequence, or
    of each document. `documents` are the lengths of those packed into the sequence.
    """

    def padded(prefix, length):
        length = -(-length // tile) * tile  # kernels compute whole tiles of queries
        return length * (2 * prefix + length + 1) / 2

    by_sequence, by_document, total, begin = [0.0] * cp, [0.0] * cp, sum(documents), 0
    ends = [total * (chunk + 1) // (2 * cp) for chunk in range(2 * cp)]
    chunk = turn = 0
    for length in documents:
        at = begin
        while at < begin + length:
            while ends[chunk] <= at:
                chunk += 1
            end = min(begin + length, ends[chunk])
            by_sequence[min(chunk, 2 * cp - 1 - chunk)] += padded(at - begin, end - at)
            at = end
        begin += length
        size = length // (2 * cp)
        for part in range(2 * cp if size else 0):
            by_document[min(part, 2 * cp - 1 - part)] += padded(part * size, size)
        for token in range(size * 2 * cp, length):  # what is left over, one rank after the other
            by_document[turn] += padded(token, 1)
            turn = (turn + 1) % cp
    return "per-document" if max(by_document) < max(by_sequence) else "per-sequence"
'''
