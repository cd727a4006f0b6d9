"""`paceline simulate`: the trace that a job with a known fault would leave."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.synth.faults import Fault


def simulate(
    out: Annotated[Path, typer.Option(help="Where to write; the meta file goes beside it.")],
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")] = 8,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches a step.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 16,
    slow_worker: Annotated[
        list[str] | None, typer.Option(help="DP,STAGE,FACTOR: one worker computes slower.")
    ] = None,
    slow_stage: Annotated[
        list[str] | None, typer.Option(help="STAGE,FACTOR: one stage has more to compute.")
    ] = None,
    long_last_stage: Annotated[
        bool, typer.Option("--long-last-stage", help="The last stage computes the loss too.")
    ] = False,
    noise: Annotated[
        float, typer.Option(min=0, help="Coefficient of variation of every computation.")
    ] = 0.015,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same trace.")] = 1,
) -> None:
    """Write the trace that the workers of a made 1F1B job would have recorded.

    Example: paceline simulate --slow-worker 2,1,1.6 --out trace-slow.parquet
    """
    from rich.progress import track

    from app.cli.console import notes
    from app.cli.made_size import refuse_too_large
    from app.synth.costs import Costs
    from app.synth.run import MadeJob
    from app.trace.job import Parallelism
    from app.trace.readers import meta, published

    made = MadeJob(
        Parallelism(dp, pp),
        microbatches,
        name=meta.trace_name(out),
        costs=Costs().with_noise(noise),
        faults=_faults(slow_worker or [], slow_stage or [], long_last_stage),
        seed=seed,
    )
    refuse_too_large(made, steps)
    trace = made.make(
        range(steps),
        lambda numbers: track(numbers, "making steps", console=notes(), transient=True),
    )
    published.write(trace, made.job, out)
    typer.echo(f"{out}: {trace.num_ops:,} operations in {steps:,} steps")


def _faults(
    slow_workers: list[str], slow_stages: list[str], long_last_stage: bool
) -> "tuple[Fault, ...]":
    from app.synth.faults import LongLastStage, SlowStage, SlowWorker

    faults: list[Fault] = []
    for text in slow_workers:
        dp_rank, stage, slowdown = _numbers("--slow-worker", text, "DP,STAGE,FACTOR")
        faults.append(SlowWorker(int(dp_rank), int(stage), slowdown))
    for text in slow_stages:
        stage, slowdown = _numbers("--slow-stage", text, "STAGE,FACTOR")
        faults.append(SlowStage(int(stage), slowdown))
    return (*faults, LongLastStage()) if long_last_stage else tuple(faults)


def _numbers(option: str, text: str, form: str) -> list[float]:
    *indices, factor = text.split(",")
    try:
        numbers = [*(int(index) for index in indices), float(factor)]
    except ValueError:
        numbers = []
    if len(numbers) != form.count(",") + 1:
        raise InvalidRequest(f"{option} {text}: want {form}, whole numbers and then a factor")
    return numbers
