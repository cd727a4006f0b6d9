"""A real PyTorch job sent to a real server: the findings name the injected fault."""

import pytest

from tests.e2e.stack import TOKEN, Stack
from tests.torch.launch import needs_torch, train_ranks
from tests.torch.verdicts import (
    EXPECTED,
    MAX_DISCREPANCY,
    Result,
    Verdict,
    discrepancy,
    is_as_expected,
    windows_of,
)

pytestmark = [needs_torch, pytest.mark.nightly, pytest.mark.timeout(1800)]

WINDOW_STEPS = 4
NUM_STEPS = 1 + WINDOW_STEPS  # the first one is not analysed
ATTEMPTS = 3


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stack")
    url = f"sqlite:///{directory / 'paceline.db'}"
    with Stack(directory, url, window_steps=str(WINDOW_STEPS)) as stack:
        yield stack


@pytest.fixture(scope="module")
def runs(stack, tmp_path_factory):
    """The windows of every run; if a verdict is wrong, the jobs are trained again.

    A busy machine disturbs single runs. A wrong verdict in every attempt still fails: the windows
    of all attempts count.
    """
    found: dict[str, list[Result]] = {run: [] for run in EXPECTED}
    for attempt in range(ATTEMPTS):
        results = _train_and_fetch(stack, f"attempt-{attempt}", tmp_path_factory.mktemp("ranks"))
        found = {run: found[run] + windows for run, windows in results.items()}
        if is_as_expected(found):
            break
    return found


def _train_and_fetch(stack, name, directory):
    arguments = ["--url", stack.url, "--token", TOKEN, "--job", name, "--steps", str(NUM_STEPS)]
    train_ranks(4, directory, "examples.torch_pipeline.train", *arguments, "--runs", *EXPECTED)
    return {
        run: windows_of(stack, f"{name}-{run.replace(':', '-')}", NUM_STEPS - 1) for run in EXPECTED
    }


@pytest.mark.parametrize("run", EXPECTED)
def test_cause_and_culprits_match_over_all_windows(runs, run):
    verdict = Verdict.of(runs[run])
    assert (verdict.cause, verdict.culprits) == EXPECTED[run], verdict


def test_simulated_steps_match_the_measured_ones(runs):
    assert discrepancy(runs) < MAX_DISCREPANCY


@pytest.mark.parametrize("run", EXPECTED)
def test_every_step_is_analysed_except_the_first(runs, run):
    steps = [step for window in runs[run] for step in window["steps"]]
    skipped = [each["step"] for window in runs[run] for each in window["skipped_steps"]]
    assert sorted(set(steps)) == [*range(1, NUM_STEPS)]
    assert set(skipped) == {0}
