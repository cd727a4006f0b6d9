"""Predicted against achieved gain in real trainings on the CPU (`benchmarks advised`).

Each training of examples/torch_advised is recorded with its fault, advised, and trained with the
advised text pasted into it. What else the machine does would look like a gain or a loss, so a round
alternates between both: before, after, after, before, the same steps in either. If the figures of a
round are too far apart, there is another one, at most `MAX_ROUNDS`, and all of them count together.
Predicted and achieved are T_new / T, T being the mean simulated step of the recordings; errors are
points, 100 * |predicted - achieved|.
"""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import Any

from app.advice.advise import advise
from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix
from app.engine.replays import prepare
from app.monitor import advice_case
from app.trace.job import Parallelism
from benchmarks.recording.collected import Collector, served
from tests.harness.ranks import TrainingFailed, run_ranks

MODULE = "examples.torch_advised.train"
NUM_RANKS = 4
TRAINED_WITHIN_S = 900.0
MAX_ERROR = 4.0  # points
MAX_ROUNDS = 6  # a busy machine disturbs single ones; of three it has disturbed all
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """A training of the example, what its owner knows, and the fix to be advised.

    `pasted_as` is the field of the example's plan that takes the text whose label begins with
    `label`. It trains `steps` steps at a time, the first of which is not analysed.
    """

    training: str
    sizes: Parallelism
    fix: str
    label: str
    pasted_as: str = "pasted"
    facts: Facts = field(default_factory=Facts)
    steps: int = 9


TRIALS = (
    Trial(
        "long-last-stage",
        Parallelism(2, 2, 1),
        "resplit-stages",
        "Megatron-LM",
        facts=Facts(layers=8),
    ),
    Trial("gc-pauses", Parallelism(2, 2, 1), "planned-gc", "Megatron-LM", steps=13),
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
    rounds: int
    causes: tuple[str, ...]
    step_s: float
    discrepancy: float
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


class Ranks:
    """Four processes that train one plan after the other, and the recordings of their jobs."""

    def __init__(self, plans: Path, running: Future[Any], ended: "Queue[str]") -> None:
        # For reading, too: opening a FIFO to write would wait for the ranks to start.
        self._plans = os.fdopen(os.open(plans, os.O_RDWR), "w")
        self._running, self._ended = running, ended

    def train(self, plan: Mapping[str, Any]) -> None:
        """Train a plan and wait until its recording is complete.

        Raises:
            TrainingFailed: a rank ended with an error.
        """
        print(json.dumps(plan), file=self._plans, flush=True)
        while True:
            try:
                self._ended.get(timeout=_POLL_S)
                return
            except Empty:
                if self._running.done():
                    self._running.result()
                    raise TrainingFailed("its ranks ended early", "") from None

    def close(self) -> None:
        """Let the ranks end."""
        self._plans.close()


@contextmanager
def started(collectors: Mapping[str, Collector]) -> Iterator[Ranks]:
    """Ranks that wait for plans of these jobs.

    Raises:
        TrainingFailed: a rank ended with an error.
    """
    ended: Queue[str] = Queue()
    with (
        TemporaryDirectory(prefix="paceline-") as name,
        served(collectors, ended.put) as url,
        ThreadPoolExecutor(1) as pool,
    ):
        plans = Path(name) / "plans"
        os.mkfifo(plans)
        arguments = ["--url", url, "--token", "none", "--runs-from", str(plans)]
        running = pool.submit(run_ranks, MODULE, arguments, NUM_RANKS, Path(name), TRAINED_WITHIN_S)
        ranks = Ranks(plans, running, ended)
        try:
            yield ranks
        finally:
            ranks.close()
        running.result()


def outcomes(trials: Sequence[Trial]) -> list[Outcome]:
    """Train each before and after its advice.

    Raises:
        TrainingFailed: a rank ended with an error.
    """
    pairs = [Pair.of(each) for each in trials]
    with started(
        {each.name: each for pair in pairs for each in (pair.before, pair.after)}
    ) as ranks:
        return [pair.alternated(ranks) for pair in pairs]


@dataclass(frozen=True, slots=True)
class Pair:
    """The recordings of a training without its fix and with it."""

    trial: Trial
    before: Collector
    after: Collector

    @classmethod
    def of(cls, trial: Trial) -> "Pair":
        """Nothing is recorded yet."""
        names = (f"{trial.training}-before", f"{trial.training}-after")
        num_steps = 2 * trial.steps * MAX_ROUNDS
        return cls(trial, *(Collector(name, trial.sizes, num_steps) for name in names))

    def alternated(self, ranks: Ranks) -> Outcome:
        """Train in rounds until the outcome holds or there were `MAX_ROUNDS`.

        Raises:
            TrainingFailed: a rank ended with an error.
        """
        text, found = None, None
        for number in range(MAX_ROUNDS):
            self._train(ranks, self.before, 2 * number)
            text = text or self._advised_text()
            if text is None:  # a busy machine may hide the cause in few steps
                continue
            pasted = {self.trial.pasted_as: text}
            self._train(ranks, self.after, 2 * number, **pasted)
            self._train(ranks, self.after, 2 * number + 1, **pasted)
            self._train(ranks, self.before, 2 * number + 1)
            found = self._outcome(text, number + 1)
            if found.holds:
                break
        return found or self._outcome(None, MAX_ROUNDS)

    def _train(self, ranks: Ranks, job: Collector, part: int, **pasted: str) -> None:
        steps = self.trial.steps
        plan = {"name": job.name, "training": self.trial.training, "steps": steps}
        ranks.train(plan | {"first_step": part * steps} | pasted)

    def _advised_text(self) -> str | None:
        """What to paste, by the steps so far; None where the fix is not advised."""
        fix = _advised(self.trial, _case(self.trial, self.before))
        return None if fix is None else _text(self.trial, fix)

    def _outcome(self, text: str | None, rounds: int) -> Outcome:
        """What all recordings say; the fix must still be advised, and the same layout or flags.

        Code has coefficients of the job's own micro-batches in it, which differ a little.
        """
        trial, case = self.trial, _case(self.trial, self.before)
        causes = tuple(finding.cause for finding in case.result.findings or ())
        found = Outcome(trial.training, rounds, causes, case.step_s, case.discrepancy, text)
        fix = _advised(trial, case)
        if text is None or fix is None or (trial.pasted_as != "code" and _text(trial, fix) != text):
            return found
        fixed = _case(trial, self.after)
        return replace(
            found,
            predicted=fix.step_s / case.step_s,
            achieved=fixed.step_s / case.step_s,
            recorded=float(fixed.replay.recorded_s.mean() / case.replay.recorded_s.mean()),
        )


def _case(trial: Trial, collector: Collector) -> AdviceCase:
    [window] = collector.windows()
    return advice_case(prepare(window), trial.facts)


def _advised(trial: Trial, case: AdviceCase) -> Fix | None:
    return next((each for each in advise(case).fixes if each.name == trial.fix), None)


def _text(trial: Trial, fix: Fix) -> str:
    return next(each.text for each in fix.paste if each.label.startswith(trial.label))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the outcomes as JSON; 1 while one does not hold, 2 where none can be trained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks advised", description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="of each training (1)")
    parser.add_argument(
        "--training", action="append", choices=list(BY_NAME), help="only this one, or several times"
    )
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    trials = [BY_NAME[name] for name in options.training or BY_NAME]
    try:
        found = [each for _ in range(options.runs) for each in outcomes(trials)]
    except TrainingFailed as failed:
        print(failed.output, file=sys.stderr)
        raise
    holds = all(each.holds for each in found)
    print(json.dumps({"runs": [each.as_json() for each in found], "holds": holds}, indent=1))
    return 0 if holds else 1
