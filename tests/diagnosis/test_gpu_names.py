"""Sentences name the rank and the GPU of whom they blame, as far as these are known."""

import pytest

from app.diagnosis.finding import Culprit
from app.diagnosis.wording import who

NAMES = [
    (Culprit(3, 1, "host-043", 11, 5), "rank 11 (dp 3, stage 1) on host-043, GPU 5"),
    (Culprit(3, 1, "host-043", 11), "rank 11 (dp 3, stage 1) on host-043"),
    (Culprit(3, 1, None, 11, 5), "rank 11 (dp 3, stage 1), GPU 5"),
    (Culprit(rank=11, host="host-043"), "rank 11 on host-043"),
    (Culprit(rank=11), "rank 11"),
    (Culprit(3, 1, "host-043"), "dp 3, stage 1 on host-043"),
    (Culprit(stage=3), "stage 3, the last stage,"),
    (Culprit(host="host-043"), "host-043"),
    (Culprit(), "every worker"),
]


@pytest.mark.parametrize(("culprit", "name"), NAMES)
def test_a_culprit_is_named_by_all_that_is_known(culprit, name):
    assert who([culprit], 4) == name
