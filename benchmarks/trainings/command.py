"""`python -m benchmarks trainings`: trains, asks Paceline, judges."""

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from msgspec import to_builtins

from benchmarks.trainings import judge, recorded
from benchmarks.trainings.cases import BY_NAME, CASES, Case, Run
from benchmarks.trainings.judge import GOOD, Verdict
from benchmarks.trainings.served import TOKEN, PacelineServer
from tests.harness.ranks import TrainingFailed, run_ranks

MODULE = "examples.torch_faults.train"
HUGGINGFACE_MODULE = "examples.torch_faults.train_huggingface"
TRAINED_WITHIN_S = 1800.0  # all runs of one number of ranks


def main(arguments: list[str]) -> int:
    """Print figures as JSON; 1 while a bar is missed, 2 where nothing can be trained."""
    options = _parser().parse_args(arguments)
    if options.recorded is not None:
        return _show(list(_rejudged(options.recorded, options.case or list(BY_NAME))), [])
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    cases = [BY_NAME[name] for name in options.case] if options.case else list(CASES)
    skipped = [case.name for case in cases if not _can_train(case)]
    cases = [case for case in cases if case.name not in skipped]
    runs = [Run.of(case, number, options.seed) for number in range(options.runs) for case in cases]
    with TemporaryDirectory(prefix="paceline-") as name:
        directory = Path(name)
        with PacelineServer(directory) as served:
            verdicts = _trained(served, directory, runs, options.keep)
    return _show(verdicts, skipped)


def _show(verdicts: list[tuple[Run, Verdict]], skipped: list[str]) -> int:
    """Print the figures; the exit status."""
    found = judge.figures(verdicts)
    # Skipped cases count as not held.
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


def _trained(
    served: PacelineServer, directory: Path, runs: list[Run], kept: Path | None
) -> list[tuple[Run, Verdict]]:
    """Train the runs, those of one module and number of ranks in one launch; their verdicts.

    Raises:
        TrainingFailed: a rank ended with an error; what it printed is on standard error.
    """
    launches: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        module = HUGGINGFACE_MODULE if run.case.way == "huggingface" else MODULE
        launches[module, run.case.num_ranks].append(run)
    found = []
    for (module, num_ranks), together in launches.items():
        plans = [json.dumps(run.plan()) for run in together]
        arguments = ["--url", served.url, "--token", TOKEN, "--runs", *plans]
        stop = Event()
        with ThreadPoolExecutor(1) as pool:
            # Concurrently with the training, so that each run is reported when it ends.
            judged = pool.submit(_judged, served, directory, together, kept, stop)
            try:
                run_ranks(module, arguments, num_ranks, directory, TRAINED_WITHIN_S)
            except BaseException as error:
                stop.set()
                if isinstance(error, TrainingFailed):
                    print(error.output, file=sys.stderr)
                raise
            found += judged.result()
    return found


def _judged(
    served: PacelineServer, directory: Path, runs: list[Run], kept: Path | None, stop: Event
) -> list[tuple[Run, Verdict]]:
    """Verdict of each run of a launch, as they end."""
    found = []
    for run in runs:
        windows = served.windows(run, stop)
        verdict = Verdict.of(run, [window.result for window in windows])
        printed = _rank_figures(directory, run)
        if kept is not None:
            verdict_json = {"verdict": to_builtins(verdict)}
            recorded.keep(kept, run, windows, run.truth() | printed | verdict_json)
        _report(run, verdict, f"; {printed['took_s']:.0f} s")
        found.append((run, verdict))
    return found


def _rank_figures(directory: Path, run: Run) -> dict[str, Any]:
    """Printed by the ranks of a run: its duration, and how much each one overslept."""
    printed = [
        json.loads(line)
        for rank in range(run.case.num_ranks)
        for line in (directory / f"rank{rank}.log").read_text(errors="replace").splitlines()
        if line.startswith('{"run"') and line.endswith("}")
    ]
    mine = [each for each in printed if each["run"] == run.name]
    return {
        "took_s": max((each["took_s"] for each in mine), default=0.0),
        "overslept": [each["overslept"] for each in mine],
    }


def _rejudged(directory: Path, names: list[str]) -> Iterator[tuple[Run, Verdict]]:
    """Verdicts of the current code on recorded runs."""
    for run, results in recorded.runs(directory, names):
        verdict = Verdict.of(run, results)
        _report(run, verdict)
        yield run, verdict


def _report(run: Run, verdict: Verdict, took: str = "") -> None:
    """One line of progress."""
    mark = "ok" if verdict.outcome in GOOD else "NO"
    extra = f", beside it {', '.join(verdict.extra_causes)}" if verdict.extra_causes else ""
    sentence = verdict.sentence or "no finding"
    print(
        f"{mark} {run.name}: {verdict.outcome}, {verdict.num_right_windows} of "
        f"{verdict.num_windows} windows{extra}{took}; {sentence}",
        file=sys.stderr,
        flush=True,
    )
