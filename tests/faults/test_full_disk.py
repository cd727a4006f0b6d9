"""Rows 10 and 17 of the fault matrix on a real disk that is full, with everything of ours on it."""

import pytest

from benchmarks.full_disk import disk_trial, on_small_disk, run_rounds
from tests.harness.backends import find_programs
from tests.harness.small_disk import small_disk

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="session", autouse=True)
def _can_mount(tmp_path_factory):
    try:
        with small_disk(tmp_path_factory.mktemp("mount") / "disk", 1 << 20):
            pass
    except OSError as error:
        pytest.skip(f"needs root, to mount a disk of its own: {error}")


def test_row_10_served_on_a_full_disk_goes_on_and_loses_nothing(tmp_path):
    assert after_a_full_disk("embedded", tmp_path).refusals["disk_full"] > 0, "it says why"


@pytest.mark.skipif(find_programs() is None, reason="needs Debian's postgresql")
def test_row_17_postgresql_on_a_full_disk_goes_on_and_loses_nothing(tmp_path):
    after_a_full_disk("postgresql", tmp_path)


def after_a_full_disk(backend, tmp_path):
    with (
        on_small_disk(backend, tmp_path) as (stack, disk),
        disk_trial(stack, "disk", 1) as trial,
    ):
        seen = run_rounds(stack, disk, trial, 1, 1)
        verdict = trial.finish()
    assert (seen.violations, verdict["violations"]) == ([], [])
    return seen
