import pytest

from app.diagnosis.detector import as_ratio, names_of
from app.result.finding import Culprit


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
