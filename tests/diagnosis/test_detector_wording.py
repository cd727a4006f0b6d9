import pytest

from app.diagnosis.detector import CostFigures, as_ratio, finding_sentence, names_of, percent
from app.result.finding import Culprit


def test_sentence_with_onset_and_cost():
    worker = Culprit(3, 1, "host-17")
    fact = f"{names_of([worker])} is {as_ratio(1.6)} slower than its peers in forward and backward"
    assert finding_sentence(fact, CostFigures(0.31, 1204, "chronic")) == (
        "host-17 (dp 3, stage 1) is 1.6x slower than its peers in forward and backward, "
        "since step 1204; it costs 31 % of the job's GPU time"
    )


def test_sentence_leaves_out_unknown_parts():
    assert finding_sentence("it is slow", CostFigures(None, None, None)) == "it is slow"


@pytest.mark.parametrize(
    ("culprits", "words"),
    [
        ([], "every worker"),
        ([Culprit(host="host-2")], "host-2"),
        ([Culprit(dp_rank=4)], "dp 4"),
        ([Culprit(stage=1)], "stage 1"),
        ([Culprit(stage=3)], "stage 3, the last stage,"),
        ([Culprit(3, 1, "host-43", 11, 5)], "host-43, rank 11 (dp 3, stage 1), GPU 5"),
        ([Culprit(3, 1, None, 11, 5)], "rank 11 (dp 3, stage 1), GPU 5"),
        ([Culprit(rank=11, host="host-43")], "host-43, rank 11"),
        ([Culprit(rank=11)], "rank 11"),
        ([Culprit(3, 1, "host-43")], "host-43 (dp 3, stage 1)"),
        ([Culprit(host="a"), Culprit(host="b")], "a and b"),
        ([Culprit(host=name) for name in "abc"], "a, b and c"),
        ([Culprit(host=name) for name in "abcdef"], "a, b, c and 3 more hosts"),
    ],
)
def test_names_of_culprits(culprits, words):
    assert names_of(culprits, num_stages=4) == words


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.6, "1.6x"), (1.04, "1.04x"), (12.34, "12x"), (2410.0, "2,410x")]
)
def test_ratio_in_words(ratio, text):
    assert as_ratio(ratio) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.311, "31 %"), (0.0449, "4.5 %"), (0.099, "9.9 %"), (0.05, "5 %")]
)
def test_share_in_words(share, text):
    assert percent(share) == text
