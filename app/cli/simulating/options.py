"""Options of `paceline simulate`."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[
    Path | None,
    typer.Option(
        help="Write a trace, and its meta file and truth beside it.", metavar="FILE.parquet"
    ),
]
To = Annotated[str | None, typer.Option(help="Push to this server instead.", metavar="URL")]
Dp = Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline stages.")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")]
Chunks = Annotated[int, typer.Option(min=1, help="Model chunks on a stage.")]
Microbatches = Annotated[int, typer.Option(min=1, help="Micro-batches a step.")]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="gpipe, 1f1b, interleaved or zero-bubble; left out: 1f1b, or interleaved if a stage "
        "has chunks.",
        metavar="NAME",
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps that are recorded.")]
Sampled = Annotated[
    str | None,
    typer.Option(
        help="As in 40/400: of every 400 steps only the first 40 are recorded.",
        metavar="RECORDED/EVERY",
    ),
]
FaultTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="What goes wrong, as in slow-worker:dp=3,stage=1,factor=1.6,from=20; once for each.",
        metavar="NAME:KEY=VALUE,...",
    ),
]
ListFaults = Annotated[
    bool, typer.Option("--list-faults", help="Print every fault with its keys, and nothing else.")
]
Layers = Annotated[
    str | None,
    typer.Option(help="The model's layers, or those of each chunk as in 17,16,16,15."),
]
Hidden = Annotated[int | None, typer.Option(min=1, help="The model's hidden size.")]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens of a micro-batch.")]
NoiseCv = Annotated[
    float,
    typer.Option("--noise", min=0, help="Coefficient of variation of every computation."),
]
Tail = Annotated[
    str, typer.Option(help="Kind of noise: log-normal, pareto or heavy-tailed.", metavar="KIND")
]
GpusPerHost = Annotated[int, typer.Option(min=1, help="GPUs of a host.")]
ClockOffset = Annotated[
    float, typer.Option(min=0, max=3600, help="Hosts' clocks are wrong by up to so many seconds.")
]
DriftPpm = Annotated[
    float,
    typer.Option(min=0, max=100_000, help="Hosts' clocks gain or lose up to so many us a second."),
]
FirstSteps = Annotated[
    int, typer.Option(min=0, help="So many steps at the beginning take three times as long.")
]
EvaluateEvery = Annotated[
    int, typer.Option(min=0, help="The model is evaluated every so many steps; 0: never.")
]
CheckpointEvery = Annotated[
    int, typer.Option(min=0, help="The model is saved every so many steps; 0: never.")
]
GpusTell = Annotated[
    bool,
    typer.Option("--gpus-tell", help="Workers record their GPU's clock and temperature."),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed makes the same trace.")]
Pace = Annotated[
    str, typer.Option(help="With --to: how many times as fast as it would train, or max.")
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_TOKEN",
        help="With --to: the server's; left out: the one in the data directory.",
    ),
]
JobId = Annotated[
    str | None, typer.Option("--job", help="With --to: id of the job; left out: made.")
]
StragglerStudy = Annotated[
    bool,
    typer.Option(
        "--straggler-study",
        help="Print how efficient 8 to 100,000 workers are that wait for the slowest of them.",
    ),
]
JsonOut = Annotated[
    Path | None,
    typer.Option("--json", help="With the study: write it here; - for standard output only."),
]
ChartOut = Annotated[
    Path | None, typer.Option("--chart", help="With the study: a chart.", metavar="FILE.html")
]
