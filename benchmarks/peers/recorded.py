"""Trains eight processes on this machine and returns the windows of their recordings."""

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.diagnosis.job_history import History
from app.monitor import analysed
from app.trace.job import Parallelism
from app.trace.window import Window
from benchmarks.recording.collected import Collector, served
from tests.harness.ranks import TrainingFailed, run_ranks

MODULE = "benchmarks.peers.train"
SIZES = Parallelism(dp_size=2, pp_size=1, tp_size=4)
WINDOW_STEPS = 8
TRAINED_WITHIN_S = 300.0


def recorded_windows(
    slow_ranks: Sequence[int] = (),
    *,
    slowdown: float = 1.6,
    num_windows: int = 2,
    group_every: int = 2,
) -> list[Window]:
    """Closed windows of a training of 4 tensor-parallel peers x 2 replicas, in their last revision.

    The first step, in which processes start up, is in none of them. `collectives` hold the rows of
    all members of all groups, in one of `group_every` steps.

    Raises:
        TrainingFailed: a process failed, or they were not done in time.
    """
    collector = Collector("peers", SIZES, WINDOW_STEPS)
    num_steps = num_windows * WINDOW_STEPS
    arguments = ["--steps", str(num_steps), "--slowdown", str(slowdown)]
    arguments += ["--group-every", str(group_every), "--slow", *map(str, slow_ranks)]
    with TemporaryDirectory(prefix="paceline-") as directory, served({"peers": collector}) as url:
        run_ranks(MODULE, ["--url", url, *arguments], SIZES.world_size, Path(directory),
                  TRAINED_WITHIN_S)  # fmt: skip
    return collector.windows()


def named(window: Window) -> list[dict[str, Any]]:
    """The causes that Paceline finds in a window, and the ranks that it names for each."""
    _, result, _ = analysed(window, History())
    return [
        {
            "cause": finding["cause"],
            "ranks": [culprit["rank"] for culprit in finding["culprits"]],
            "sentence": finding["sentence"],
        }
        for finding in result["findings"] or []
    ]


def mean_stays_s(window: Window) -> dict[int, float]:
    """Mean stay of each rank in its tensor-parallel collectives; a late rank has the shortest."""
    table = window.collectives
    stays: dict[int, list[float]] = defaultdict(list)
    if table is not None:
        for rank, group, stay_s in zip(table.rank, table.group, table.stay_s, strict=True):
            if table.groups[int(group)].axis == "tp":
                stays[int(rank)].append(float(stay_s))
    return {rank: sum(each) / len(each) for rank, each in sorted(stays.items())}


def main(arguments: list[str]) -> int:
    """Print the ranks named in each window; 1 where they are not the slow ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers")
    parser.add_argument("--slow", type=int, nargs="*", default=[6], help="ranks (6)")
    parser.add_argument("--slowdown", type=float, default=1.6)
    parser.add_argument("--group-every", type=int, default=1, help="steps (1)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    try:
        windows = recorded_windows(
            options.slow, slowdown=options.slowdown, group_every=options.group_every
        )
    except TrainingFailed as failed:
        print(failed.output, file=sys.stderr)
        raise
    found = [
        {"window": each.id, "named": named(each), "mean_stay_s": mean_stays_s(each)}
        for each in windows
    ]
    print(json.dumps(found))
    ranks = [[rank for each in named(one) for rank in each["ranks"]] for one in windows]
    is_right = [each == options.slow for each in ranks]
    return 0 if windows and all(is_right) else 1
