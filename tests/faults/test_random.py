"""The random version: drawn faults, and a verdict for whoever runs it by hand or by night."""

import json
from functools import partial
from itertools import islice

from typer.testing import CliRunner

from app.cli import app
from app.cli.bench.faults.deeds import do, schedule
from app.cli.bench.faults.trial import Trial

SEED = 3


def test_the_same_seed_draws_the_same_faults():
    assert list(islice(schedule(SEED), 50)) == list(islice(schedule(SEED), 50))
    assert list(islice(schedule(SEED), 50)) != list(islice(schedule(SEED + 1), 50))


def test_drawn_faults_lose_nothing(stack, name):
    with Trial(stack, name, seed=SEED) as trial:
        for drawn in islice(schedule(SEED), 5):
            trial.fault(partial(do, stack, drawn))
            trial.flow()
        assert trial.finish()["violations"] == []


def test_the_command_says_what_it_did_and_that_nothing_was_lost():
    result = CliRunner().invoke(
        app, ["bench", "faults", "--minutes", "0.1", "--seed", str(SEED), "--store", "sqlite"]
    )
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0, verdict["violations"]
    assert verdict["missing"] == verdict["spurious"] == 0
    assert verdict["rows"] > 0
    assert verdict["schedule"] == [
        drawn.told() for drawn in islice(schedule(SEED), len(verdict["schedule"]))
    ]
