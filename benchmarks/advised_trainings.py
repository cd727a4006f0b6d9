"""Predicted against achieved gain in real trainings on the CPU (`benchmarks advised`).

Each training of examples/torch_advised is recorded with its fault, advised, and trained again with
the advised text pasted into it, on the same data. Predicted and achieved are T_new / T, T being the
mean simulated step of the recordings; errors are points, 100 * |predicted - achieved|.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.advice.advise import advise
from app.advice.fix import AdviceCase, Facts, Fix
from app.engine.replays import prepare
from app.monitor import advice_case
from app.trace.job import Parallelism
from benchmarks.recording.collected import Collector, served
from tests.harness.ranks import TrainingFailed, run_ranks

MODULE = "examples.torch_advised.train"
NUM_RANKS = 4
NUM_STEPS = 17  # the first one is not analysed
TRAINED_WITHIN_S = 600.0
MAX_ERROR = 4.0  # points


@dataclass(frozen=True, slots=True)
class Trial:
    """A training of the example, what its owner knows, and the fix to be advised.

    `pasted_as` is the field of the example's plan that takes the text labelled `label`.
    """

    training: str
    sizes: Parallelism
    fix: str
    label: str
    pasted_as: str = "pasted"
    facts: Facts = field(default_factory=Facts)


TRIALS = (
    Trial(
        "long-last-stage",
        Parallelism(2, 2, 1),
        "resplit-stages",
        "Megatron-LM",
        facts=Facts(layers=8),
    ),
    Trial("gc-pauses", Parallelism(2, 2, 1), "planned-gc", "Megatron-LM"),
    Trial(
        "uneven-sequences",
        Parallelism(4, 1, 1),
        "balance-sequences",
        "PyTorch: assignment in the sampler",
        "code",
    ),
)
BY_NAME = {each.training: each for each in TRIALS}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One training before and after its fix; None where the fix was not advised.

    `predicted`, `achieved` and `recorded` are T_new / T: the first two of simulated steps, the last
    of recorded ones, which the training's owner sees. `causes` are those found before.
    """

    training: str
    causes: tuple[str, ...]
    step_s: float
    discrepancy: float
    fix: str | None = None
    pasted: str | None = None
    predicted: float | None = None
    achieved: float | None = None
    recorded: float | None = None

    @property
    def error(self) -> float | None:
        """Points between predicted and achieved."""
        if self.predicted is None or self.achieved is None:
            return None
        return 100 * abs(self.predicted - self.achieved)

    @property
    def holds(self) -> bool:
        """Whether the fix was advised and the error is within the limit."""
        return self.error is not None and self.error <= MAX_ERROR

    def as_json(self) -> dict[str, Any]:
        """All fields, the error and whether it holds."""
        return asdict(self) | {"error_points": self.error, "holds": self.holds}


def outcomes(trials: Sequence[Trial], num_steps: int = NUM_STEPS) -> list[Outcome]:
    """Train all before, ask for advice, and train all for which it was given again.

    Raises:
        TrainingFailed: a rank ended with an error.
    """
    before = recorded_cases(trials, {}, num_steps)
    fixes = {each.training: _advised(each, before[each.training]) for each in trials}
    pasted = {
        each.training: {each.pasted_as: _text(each, fix)}
        for each in trials
        if (fix := fixes[each.training]) is not None
    }
    after = recorded_cases([BY_NAME[name] for name in pasted], pasted, num_steps)
    return [
        _outcome(each, before[each.training], fixes[each.training], after.get(each.training))
        for each in trials
    ]


def recorded_cases(
    trials: Sequence[Trial], pasted: Mapping[str, Mapping[str, str]], num_steps: int
) -> dict[str, AdviceCase]:
    """Each training's analysed recording, by name; `pasted` are further fields of its plan.

    Raises:
        TrainingFailed: a rank ended with an error.
    """
    if not trials:
        return {}
    collectors = {each.training: Collector(each.training, each.sizes, num_steps) for each in trials}
    plans = [
        {"name": name, "training": name, "steps": num_steps} | dict(pasted.get(name, {}))
        for name in collectors
    ]
    with TemporaryDirectory(prefix="paceline-") as directory, served(collectors) as url:
        arguments = ["--url", url, "--token", "none", "--runs", *map(json.dumps, plans)]
        run_ranks(MODULE, arguments, NUM_RANKS, Path(directory), TRAINED_WITHIN_S)
    return {each.training: _case(each, collectors[each.training]) for each in trials}


def _case(trial: Trial, collector: Collector) -> AdviceCase:
    [window] = collector.windows()
    return advice_case(prepare(window), trial.facts)


def _advised(trial: Trial, case: AdviceCase) -> Fix | None:
    return next((each for each in advise(case).fixes if each.name == trial.fix), None)


def _text(trial: Trial, fix: Fix) -> str:
    return next(each.text for each in fix.paste if each.label == trial.label)


def _outcome(
    trial: Trial, before: AdviceCase, fix: Fix | None, after: AdviceCase | None
) -> Outcome:
    found = Outcome(
        trial.training,
        tuple(each["cause"] for each in before.result["findings"] or ()),
        before.step_s,
        before.result["fidelity"]["discrepancy"],
    )
    if fix is None or after is None:
        return found
    return Outcome(
        found.training,
        found.causes,
        found.step_s,
        found.discrepancy,
        fix.name,
        _text(trial, fix),
        fix.step_s / before.step_s,
        after.step_s / before.step_s,
        float(after.replay.recorded_s.mean() / before.replay.recorded_s.mean()),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the outcomes as JSON; 1 if a fix was not advised or missed its prediction, 2 if none
    can be trained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks advised", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each training (1)")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help=f"of a run ({NUM_STEPS})")
    parser.add_argument(
        "--training", action="append", choices=list(BY_NAME), help="only this one, or several times"
    )
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    trials = [BY_NAME[name] for name in options.training or BY_NAME]
    try:
        found = [each for _ in range(options.runs) for each in outcomes(trials, options.steps)]
    except TrainingFailed as failed:
        print(failed.output, file=sys.stderr)
        raise
    holds = all(each.holds for each in found)
    print(json.dumps({"runs": [each.as_json() for each in found], "holds": holds}, indent=1))
    return 0 if holds else 1
