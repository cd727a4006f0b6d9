from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.advice.sequences.balance import ASSIGN, longest_first
from app.advice.sequences.packing import PACKER, Document, OutlierPacker, Workload
from app.advice.sequences.sharding import CHOOSE_SHARDING, choose_sharding


def defined(code):
    """What the pasted text defines, run without anything else."""
    names: dict[str, Any] = {}
    exec(compile(code, "pasted", "exec"), names)
    return names


@given(
    st.integers(1, 4),
    st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=4), min_size=12, max_size=12),
)
def test_pasted_assignment_is_the_one_that_is_predicted(dp_size, lengths):
    assign = defined(ASSIGN.format(cost="0.5 + 2.0 * sum(s * s for s in sequences)"))["assign"]
    costs = np.array([0.5 + 2.0 * sum(s * s for s in each) for each in lengths])
    rank_of = longest_first(costs, dp_size)
    expected = [np.flatnonzero(rank_of == rank).tolist() for rank in range(dp_size)]
    assert assign(lengths, dp_size) == expected


@given(st.lists(st.lists(st.integers(1, 90), max_size=25), max_size=6), st.integers(1, 4))
def test_pasted_packer_packs_as_predicted(batches, number):
    code = PACKER.format(
        thresholds=[30, 60], num_microbatches=number, max_tokens=100, per_token=1.0, per_square=0.5
    )
    pasted = defined(code)["Packer"]()
    packer = OutlierPacker(Workload(1.0, 0.5), number, 100, (30, 60))
    for batch in batches:
        found = pasted.pack([(tokens, at) for at, tokens in enumerate(batch)])
        expected = packer.pack([Document(tokens, at) for at, tokens in enumerate(batch)])
        assert found == [[(doc.tokens, doc.number) for doc in each] for each in expected]


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=12), st.integers(1, 4))
def test_pasted_choice_of_sharding_is_the_one_that_is_predicted(documents, cp_size):
    choose = defined(CHOOSE_SHARDING.format(cp_size=cp_size))["choose_sharding"]
    assert choose(documents) == choose_sharding(documents, cp_size).value
