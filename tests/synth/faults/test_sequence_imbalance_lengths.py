import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.faults.sequence_imbalance import DocumentLengths


def rng(seed=5):
    return np.random.default_rng(seed)


def packed_one_by_one(lengths, documents):
    """The slow way: documents one after the other until a micro-batch is full."""
    tokens = squares = 0
    for document in documents:
        kept = min(document, lengths.full - tokens)
        tokens, squares = tokens + kept, squares + kept**2
    return tokens, squares


def test_documents_are_long_tailed_and_some_have_full_length():
    lengths = DocumentLengths(median=500, sigma=1.0, full_share=0.1, full=10_000)
    tokens = lengths.documents(100_000, rng())
    body = tokens[tokens < 10_000]
    # 0.1 drawn so, and P(z > ln 20) of the others cut off there.
    assert (tokens == 10_000).mean() == pytest.approx(0.1 + 0.9 * 0.00137, abs=0.003)
    assert np.median(body) == pytest.approx(500, rel=0.02)
    assert body.mean() > 1.4 * np.median(body)
    assert tokens.min() >= 1


def test_microbatches_are_filled_document_by_document():
    lengths = DocumentLengths(median=300, sigma=1.2, full_share=0.05, full=1_000)
    tokens, squares = lengths.microbatches(1, rng(1))
    documents = lengths.documents(16, rng(1)).tolist()
    assert packed_one_by_one(lengths, documents) == (tokens[0], squares[0])


@pytest.mark.parametrize(
    "lengths", [DocumentLengths(), DocumentLengths(median=3, full=4_000), DocumentLengths(full=1)]
)
def test_all_microbatches_are_full_and_no_square_is_too_large(lengths):
    tokens, squares = lengths.microbatches(300, rng())
    assert (tokens == lengths.full).all()
    assert (squares <= lengths.full**2).all()
    assert (squares >= lengths.full).all()


def test_work_is_1_in_the_mean_and_only_attention_differs():
    lengths = DocumentLengths()
    _, squares = lengths.microbatches(20_000, rng(8))
    work = lengths.work(squares, 0.4)
    assert work.mean() == pytest.approx(1, abs=0.01)
    assert work.min() > 0.6
    # As published for jobs with sequence imbalance: 0.18 to 0.44.
    assert 0.18 < work.std() < 0.44
    np.testing.assert_array_equal(lengths.work(squares[:3], 0.4), work[:3])
    np.testing.assert_array_equal(lengths.work(squares, 0.0), 1.0)
    np.testing.assert_allclose(lengths.work(squares, 1.0), squares / squares.mean(), rtol=0.01)


@pytest.mark.parametrize("kwargs", [{"median": 0}, {"sigma": -1}, {"full_share": 2}, {"full": 0}])
def test_lengths_that_cannot_be_are_refused(kwargs):
    with pytest.raises(InvalidRequest, match="lengths"):
        DocumentLengths(**kwargs)


def test_a_share_above_1_is_refused():
    with pytest.raises(InvalidRequest, match="share"):
        DocumentLengths().work(np.array([1]), 1.1)
