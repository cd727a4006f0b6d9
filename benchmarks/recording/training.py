"""`torch`: what does recording cost a real training with PyTorch?"""

import importlib.util
import json
import math
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from app.errors import Unavailable
from benchmarks.recording.counting_server import counting_server
from tests.harness.ranks import ROOT, TrainingFailed, run_ranks

BAR = 0.005  # of the step
RANKS = 4
EXAMPLE = "examples.torch_pipeline.train"
TRAINED_WITHIN_S = 3600.0
# Student's t, 95 % on both sides, by degrees of freedom; beyond, as the normal distribution.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


def torch(
    pairs: Annotated[int, typer.Option(min=2, help="Runs with, and as many without.")] = 6,
    steps: Annotated[int, typer.Option(min=3, help="Of each run.")] = 12,
    schedule: Annotated[
        Literal["1f1b", "interleaved"], typer.Option(help="Of the pipeline.")
    ] = "1f1b",
) -> None:
    """Train examples/torch_pipeline, by turns recorded and not recorded, on four processes.

    `cost_share` is what training spends in the recorder, operations of a step times the measured
    cost of one, as a share of the step; under 0.005 is wanted. `difference` is how much longer
    steps take with recording, from the runs in turn, with its 95 % confidence interval: what else
    the machine does is in it too.

    Example: python -m benchmarks torch --pairs 8
    """
    _check_there()
    turns = [f"{schedule}:none", f"{schedule}:none:off"]
    with counting_server() as url:
        runs = _trained(url, steps, turns * pairs)
    typer.echo(json.dumps(figures(runs[::2], runs[1::2])))


def figures(recorded: list[dict[str, Any]], unrecorded: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures from rank 0 of the runs with recording, and of each paired run without.

    Raises:
        Unavailable: nothing was recorded in them.
    """
    ops = sum(run["ops"] for run in recorded)
    if not ops:
        raise Unavailable(f"nothing was recorded: run {EXAMPLE} by itself, it says why")
    spent_s = sum(run["recording_s"] for run in recorded)
    num_steps = sum(len(run["step_s"]) + 1 for run in recorded)  # the first one is not timed
    step_s = statistics.median(took_s for run in recorded for took_s in run["step_s"])
    shares = [
        statistics.median(one["step_s"]) / statistics.median(other["step_s"]) - 1
        for one, other in zip(recorded, unrecorded, strict=True)
    ]
    return {
        "ops_per_step": ops / num_steps,
        "cost_per_op_us": 1e6 * spent_s / ops,
        "step_s": step_s,
        "cost_share": spent_s / num_steps / step_s,
        "bar": BAR,
        "pairs": len(shares),
        "difference": statistics.fmean(shares),
        "difference_interval_95": _interval(shares),
    }


def _interval(values: list[float]) -> list[float]:
    freedom = len(values) - 1
    t = T_95[freedom - 1] if freedom <= len(T_95) else 1.96
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return [mean - half, mean + half]


def _check_there() -> None:
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("PyTorch is not installed: pip install torch==2.13.0")
    if not (ROOT / "examples" / "torch_pipeline").is_dir():
        raise Unavailable(f"{ROOT} has no examples: run this from a checkout of Paceline")


def _trained(url: str, steps: int, runs: list[str]) -> list[dict[str, Any]]:
    """Figures of each run as rank 0 printed them."""
    arguments = ["--url", url, "--token", "none", "--steps", str(steps), "--runs", *runs]
    with TemporaryDirectory() as directory:
        try:
            output = run_ranks(EXAMPLE, arguments, RANKS, Path(directory), TRAINED_WITHIN_S)
        except TrainingFailed as failed:
            typer.echo(failed.output, err=True)
            raise
    return [json.loads(line) for line in output[0].splitlines() if line.startswith("{")]
