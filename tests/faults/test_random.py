"""Random faults, and the verdict of the benchmark `faults`."""

import json
from functools import partial
from itertools import islice

import pytest

from tests.benchmarks.running import run_benchmark
from tests.harness.random_faults import inject, random_faults
from tests.harness.trial import Trial

SEED = 3


def test_same_seed_draws_the_same_faults():
    assert list(islice(random_faults(SEED), 50)) == list(islice(random_faults(SEED), 50))
    assert list(islice(random_faults(SEED), 50)) != list(islice(random_faults(SEED + 1), 50))


@pytest.mark.nightly
def test_random_faults_lose_nothing(stack, name):
    with Trial(stack, name, seed=SEED) as trial:
        for drawn in islice(random_faults(SEED), 5):
            trial.fault(partial(inject, stack, drawn))
            trial.wait_for_steps()
        assert trial.finish()["violations"] == []


@pytest.mark.nightly
def test_faults_benchmark_prints_its_schedule_and_loses_nothing():
    result = run_benchmark("faults", "--minutes", "0.1", "--seed", str(SEED), "--store", "sqlite")
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0, verdict["violations"]
    assert verdict["missing"] == verdict["spurious"] == 0
    assert verdict["rows"] > 0
    assert verdict["schedule"] == [
        drawn.as_json() for drawn in islice(random_faults(SEED), len(verdict["schedule"]))
    ]
