"""Sentences name the rank and the GPU of whom they blame, as far as these are known."""

import pytest

from app.diagnosis.detector import names_of
from app.diagnosis.finding import Culprit

NAMES = [
    (Culprit(3, 1, "host-043", 11, 5), "host-043, rank 11 (dp 3, stage 1), GPU 5"),
    (Culprit(3, 1, "host-043", 11), "host-043, rank 11 (dp 3, stage 1)"),
    (Culprit(3, 1, None, 11, 5), "rank 11 (dp 3, stage 1), GPU 5"),
    (Culprit(rank=11, host="host-043"), "host-043, rank 11"),
    (Culprit(rank=11), "rank 11"),
    (Culprit(3, 1, "host-043"), "host-043 (dp 3, stage 1)"),
    (Culprit(stage=3), "stage 3, the last stage,"),
    (Culprit(host="host-043"), "host-043"),
    (Culprit(), "every worker"),
]


@pytest.mark.parametrize(("culprit", "name"), NAMES)
def test_culprit_name_includes_rank_host_and_gpu(culprit, name):
    assert names_of([culprit], 4) == name
