"""`python -m benchmarks trainings`: trains, asks Paceline, judges."""

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.cli.bench.ranks import TrainingFailed, run_ranks
from benchmarks.trainings import judge, recorded
from benchmarks.trainings.cases import BY_NAME, CASES, Case, Run
from benchmarks.trainings.judge import GOOD, Verdict
from benchmarks.trainings.served import TOKEN, Served

MODULE = "examples.torch_faults.train"
HUGGINGFACE_MODULE = "examples.torch_faults.train_huggingface"
TRAINED_WITHIN_S = 900.0


def main(arguments: list[str]) -> int:
    """Print figures as JSON; 1 while a bar is missed, 2 where nothing can be trained."""
    told = _parser().parse_args(arguments)
    if told.recorded is not None:
        return _show(list(_judged_again(told.recorded, told.case or list(BY_NAME))), [])
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    cases = [BY_NAME[name] for name in told.case] if told.case else list(CASES)
    skipped = [case.name for case in cases if not _can_train(case)]
    cases = [case for case in cases if case.name not in skipped]
    verdicts: list[tuple[Run, Verdict]] = []
    with TemporaryDirectory(prefix="paceline-") as name:
        directory = Path(name)
        with Served(directory) as served:
            for number in range(told.runs):
                runs = [Run.of(case, number, told.seed) for case in cases]
                verdicts += _judged(served, directory, runs, told.keep)
    return _show(verdicts, skipped)


def _show(verdicts: list[tuple[Run, Verdict]], skipped: list[str]) -> int:
    """Print the figures; the exit status."""
    found = judge.figures(verdicts)
    # What was not trained is not known to hold.
    found |= {"skipped": skipped, "holds": found["holds"] and not skipped}
    print(json.dumps(found, indent=1))
    return 0 if found["holds"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks trainings", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each case")
    parser.add_argument(
        "--case",
        action="append",
        choices=list(BY_NAME),
        metavar="CASE",
        help=f"only this one, or several times: {', '.join(BY_NAME)}",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where recordings are left")
    parser.add_argument(
        "--recorded", type=Path, metavar="DIR", help="train nothing: judge what --keep has left"
    )
    parser.add_argument("--seed", type=int, default=7)
    return parser


def _can_train(case: Case) -> bool:
    needed = ("transformers", "accelerate") if case.way == "huggingface" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{case.name}: skipped: pip install {' '.join(missing)}", file=sys.stderr)
    return not missing


def _judged(
    served: Served, directory: Path, runs: list[Run], kept: Path | None
) -> Iterator[tuple[Run, Verdict]]:
    """Train the runs, those of one module and number of ranks in one launch; what was said of each.

    Raises:
        TrainingFailed: a rank ended with an error; what it printed is on standard error.
    """
    launches: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        module = HUGGINGFACE_MODULE if run.case.way == "huggingface" else MODULE
        launches[module, run.case.num_ranks].append(run)
    for (module, num_ranks), together in launches.items():
        told = _trained(served, directory, module, num_ranks, together)
        for run in together:
            windows = served.windows(run)
            verdict = Verdict.of(run, [each.result for each in windows])
            truth = {**run.truth(), **told[run.name], "verdict": asdict(verdict)}
            if kept is not None:
                recorded.keep(kept, run, windows, truth)
            _report(run, verdict, f"; {told[run.name]['took_s']:.0f} s")
            yield run, verdict


def _judged_again(directory: Path, names: list[str]) -> Iterator[tuple[Run, Verdict]]:
    """What today's code says of recorded runs."""
    for run, results in recorded.runs(directory, names):
        verdict = Verdict.of(run, results)
        _report(run, verdict)
        yield run, verdict


def _trained(
    served: Served, directory: Path, module: str, num_ranks: int, runs: list[Run]
) -> dict[str, dict[str, Any]]:
    """What the ranks said of each run: how long it took, how much longer than asked it slept."""
    plans = [json.dumps(run.plan()) for run in runs]
    arguments = ["--url", served.url, "--token", TOKEN, "--runs", *plans]
    try:
        said = run_ranks(module, arguments, num_ranks, directory, TRAINED_WITHIN_S)
    except TrainingFailed as failed:
        print(failed.said, file=sys.stderr)
        raise
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"took_s": 0.0, "overslept": []})
    for line in _of_runs(said):
        of_rank = json.loads(line)
        of_run = found[of_rank["run"]]
        of_run["took_s"] = max(of_run["took_s"], of_rank["took_s"])
        of_run["overslept"].append(of_rank["overslept"])
    return dict(found)


def _of_runs(said: list[str]) -> list[str]:
    """Of what the ranks printed, their lines about runs: Trainer prints, too."""
    return [line for each in said for line in each.splitlines() if line.startswith('{"run"')]


def _report(run: Run, verdict: Verdict, took: str = "") -> None:
    """One line of progress."""
    mark = "ok" if verdict.outcome in GOOD else "NO"
    extra = f", beside it {', '.join(verdict.extra_causes)}" if verdict.extra_causes else ""
    said = verdict.sentence or "no finding"
    print(
        f"{mark} {run.name}: {verdict.outcome}, {verdict.num_right_windows} of "
        f"{verdict.num_windows} windows{extra}{took}; {said}",
        file=sys.stderr,
        flush=True,
    )
