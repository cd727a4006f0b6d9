from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.advice.sequences.sharding import (
    TILE,
    AttentionKernel,
    Chunk,
    Sharding,
    choose_sharding,
    estimated_pairs,
    shard,
)
from app.errors import InvalidRequest

some_documents = st.lists(st.integers(1, 300), min_size=1, max_size=12)


def test_each_rank_takes_a_chunk_from_the_front_and_one_from_the_back():
    assert shard([8], 2, Sharding.PER_SEQUENCE) == [
        [Chunk(0, 2), Chunk(6, 2)],
        [Chunk(2, 2), Chunk(4, 2)],
    ]
    assert shard([8, 4], 2, Sharding.PER_SEQUENCE) == [
        [Chunk(0, 3), Chunk(1, 3)],
        [Chunk(3, 3), Chunk(6, 2), Chunk(0, 1)],
    ]
    assert shard([8, 4], 2, Sharding.PER_DOCUMENT) == [
        [Chunk(0, 2), Chunk(6, 2), Chunk(0, 1), Chunk(3, 1)],
        [Chunk(2, 2), Chunk(4, 2), Chunk(1, 1), Chunk(2, 1)],
    ]


@given(some_documents, st.integers(1, 5), st.sampled_from(Sharding))
def test_every_token_is_on_one_rank_and_no_pair_is_lost(documents, cp_size, sharding):
    ranks = shard(documents, cp_size, sharding)
    tokens = [sum(chunk.length for chunk in chunks) for chunks in ranks]
    assert sum(tokens) == sum(documents)
    assert max(tokens) - min(tokens) <= 2
    pairs = sum(chunk.pairs for chunks in ranks for chunk in chunks)
    assert pairs == sum(each * (each + 1) // 2 for each in documents)
    positions = Counter(
        at
        for chunks in ranks
        for chunk in chunks
        for at in range(chunk.prefix, chunk.prefix + chunk.length)
    )
    assert positions == Counter(at for each in documents for at in range(each))


@given(st.integers(0, 40), st.integers(1, 40))
def test_pairs_of_a_chunk_are_those_of_its_queries(prefix, length):
    counted = sum(1 for query in range(prefix, prefix + length) for _ in range(query + 1))
    assert Chunk(prefix, length).pairs == counted


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 5))
def test_sharding_per_document_gives_all_ranks_the_same_pairs(sizes, cp_size):
    ranks = shard([2 * cp_size * each for each in sizes], cp_size, Sharding.PER_DOCUMENT)
    assert len({sum(chunk.pairs for chunk in chunks) for chunks in ranks}) == 1


def test_long_documents_are_cut_each_and_short_ones_together():
    # Two long ones end on ranks unevenly; many short ones would be chunks of 16 queries.
    assert choose_sharding([50_000, 15_536], 4) is Sharding.PER_DOCUMENT
    assert choose_sharding([128] * 512, 4) is Sharding.PER_SEQUENCE
    assert choose_sharding([65_536], 4) is Sharding.PER_SEQUENCE  # both are the same


def test_padded_pairs_are_of_whole_tiles_of_queries():
    assert estimated_pairs([Chunk(0, TILE)]) == TILE * (TILE + 1) / 2
    assert estimated_pairs([Chunk(100, 1)]) == TILE * (2 * 100 + TILE + 1) / 2
    assert estimated_pairs([]) == 0


def by_hand_s(kernel, chunks):
    """The same kernel, block by block."""
    blocks_s = []
    for prefix, length in chunks:
        tiles = ceil(length / TILE)
        for tile in range(tiles):
            last = prefix + min((tile + 1) * TILE, length)
            factor = kernel.alone_factor if tiles == 1 else 1.0
            blocks_s.append(kernel.block_s + ceil(last / TILE) * kernel.tile_s * factor)
    busy_s = sum(blocks_s) * kernel.num_heads / kernel.num_processors
    return kernel.launch_s + max(busy_s, *blocks_s)


@given(st.lists(st.builds(Chunk, st.integers(0, 999), st.integers(1, 999)), min_size=1))
def test_kernel_computes_tile_by_tile(chunks):
    kernel = AttentionKernel(num_heads=3, num_processors=7)
    assert kernel.seconds(chunks) == pytest.approx(by_hand_s(kernel, chunks))


def test_short_chunks_take_as_long_as_a_whole_tile_of_queries():
    kernel = AttentionKernel()
    assert kernel.seconds([Chunk(0, 1)]) == kernel.seconds([Chunk(0, TILE)])
    assert kernel.seconds([Chunk(0, TILE + 1)]) > kernel.seconds([Chunk(0, TILE)])
    assert kernel.seconds([]) == 0.0


@pytest.mark.parametrize(
    "documents", [[65_536], [40_000, 20_000, 5_536], [512] * 128, [30_000, *[128] * 277]]
)
def test_the_chosen_sharding_is_no_slower_when_its_layer_is_simulated(documents):
    kernel = AttentionKernel()
    # A token takes 0.67 us in matrices and elementwise kernels; ranks have equally many.
    other_s = 6.7e-7 * sum(documents) / 4
    layer_s = {way: kernel.slowest_s(documents, 4, way) + other_s for way in Sharding}
    assert layer_s[choose_sharding(documents, 4)] <= min(layer_s.values()) * 1.01


def test_wrong_sizes_are_refused():
    with pytest.raises(InvalidRequest, match="at least 1"):
        shard([5], 0, Sharding.PER_SEQUENCE)
    with pytest.raises(InvalidRequest, match="no tokens"):
        shard([5, 0], 2, Sharding.PER_DOCUMENT)
