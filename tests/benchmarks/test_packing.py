"""The benchmark `packing`: the published figures follow from one fitted number."""

import json

import pytest

from app.advice.sequences.packing import flat
from benchmarks import packing


@pytest.fixture(scope="module")
def lengths():
    return packing.fitted_lengths(400)


def test_only_the_original_packing_is_fitted(lengths):
    batches = packing.made_batches(lengths, 400, seed=0)
    assert packing.original_imbalance(batches) == pytest.approx(packing.ORIGINAL, abs=0.005)
    assert packing.original_imbalance([batches[0]]) >= 1


def test_most_tokens_are_in_documents_of_less_than_half_of_the_context(lengths):
    tokens = [
        each.tokens for batch in flat(packing.made_batches(lengths, 200, seed=1)) for each in batch
    ]
    short = sum(each for each in tokens if each < packing.CONTEXT // 2)
    assert short / sum(tokens) > 0.75  # as published


def test_published_figures_follow(capsys):
    assert packing.main(["--steps", "400"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["within_limits"]
    assert max(found["away"].values()) <= packing.MAX_AWAY
    assert found["two_queues"]["here"] < found["one_queue"]["here"] < 1.2


def test_a_missed_bar_is_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(packing, "TWO_QUEUES", 1.3)
    assert packing.main(["--steps", "80"]) == 1
    assert not json.loads(capsys.readouterr().out)["within_limits"]
