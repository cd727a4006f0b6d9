"""Options of `paceline simulate`, and which of them exclude each other.

An option that would have no effect is an error.
"""

from pathlib import Path
from typing import Annotated

import typer

from app.errors import InvalidRequest

Out = Annotated[
    Path | None,
    typer.Option(
        help="Write the trace here, with its meta file and truth beside it.", metavar="FILE.parquet"
    ),
]
To = Annotated[str | None, typer.Option(help="Push to this server instead.", metavar="URL")]
Dp = Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline stages.")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")]
Chunks = Annotated[int, typer.Option(min=1, help="Model chunks per stage.")]
Microbatches = Annotated[int, typer.Option(min=1, help="Micro-batches per step.")]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="gpipe, 1f1b, interleaved or zero-bubble. Default: 1f1b, or interleaved if a stage "
        "has chunks.",
        metavar="NAME",
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps to record.")]
Sampled = Annotated[
    str | None,
    typer.Option(
        help="Record only the first 40 of every 400 steps, as in 40/400.",
        metavar="RECORDED/EVERY",
    ),
]
FaultTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="A fault, as in slow-worker:dp=3,stage=1,factor=1.6,from=20 or "
        "slow-host:host=host-001,factor=1.4. May be repeated. --list-faults has an example of "
        "each.",
        metavar="NAME:KEY=VALUE,...",
    ),
]
ListFaults = Annotated[
    bool, typer.Option("--list-faults", help="Print every fault with its keys, and exit.")
]
Layers = Annotated[
    str | None,
    typer.Option(help="Number of layers, or of each chunk as in 17,16,16,15."),
]
Hidden = Annotated[int | None, typer.Option(min=1, help="The model's hidden size.")]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens per micro-batch.")]
NoiseCv = Annotated[
    float,
    typer.Option("--noise", min=0, help="Coefficient of variation of computation times."),
]
Tail = Annotated[
    str, typer.Option(help="Kind of noise: log-normal, pareto or heavy-tailed.", metavar="KIND")
]
GpusPerHost = Annotated[int, typer.Option(min=1, help="GPUs per host.")]
ClockOffset = Annotated[
    float, typer.Option(min=0, max=3600, help="Largest error of the hosts' clocks, in seconds.")
]
DriftPpm = Annotated[
    float,
    typer.Option(min=0, max=100_000, help="Largest drift of the hosts' clocks, in us per second."),
]
FirstSteps = Annotated[
    int, typer.Option(min=0, help="Number of first steps that take three times as long.")
]
EvaluateEvery = Annotated[int, typer.Option(min=0, help="Steps between evaluations; 0: none.")]
CheckpointEvery = Annotated[int, typer.Option(min=0, help="Steps between checkpoints; 0: none.")]
RecordsGpus = Annotated[
    bool,
    typer.Option("--gpus-tell", help="Record the GPUs' clocks and temperatures."),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same trace.")]
Pace = Annotated[str, typer.Option(help="With --to: speed relative to real time, or max.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_TOKEN",
        help="With --to: the server's token. Default: the one in the data directory.",
    ),
]
JobId = Annotated[
    str | None, typer.Option("--job", help="With --to: id of the job. Default: made.")
]
StragglerStudy = Annotated[
    bool,
    typer.Option(
        "--straggler-study",
        help="Print the efficiency of 8 to 100,000 workers that wait for the slowest one.",
    ),
]
JsonOut = Annotated[
    Path | None,
    typer.Option("--json", help="With the study: write it here; - is standard output."),
]
ChartOut = Annotated[
    Path | None,
    typer.Option("--chart", help="With the study: write a chart here.", metavar="FILE.html"),
]


_ONLY_WITH_STUDY = ("json_out", "chart")
_ONLY_WITH_TO = ("pace", "token", "job")
_SUFFIX = ".parquet"


def refuse_ignored(context: typer.Context) -> None:
    """Check that every given option has an effect."""
    given = _typed_parameters(context)
    for alone, with_it in (("straggler_study", _ONLY_WITH_STUDY), ("list_faults", ())):
        if alone in given:
            others = [name for name in given if name not in (alone, *with_it)]
            _refuse(context, others, f"has no effect with {_option_name(context, alone)}")
            return
    if "straggler_study" not in given:
        others = [name for name in given if name in _ONLY_WITH_STUDY]
        _refuse(context, others, "needs --straggler-study")
    if "to" not in given:
        _refuse(context, [name for name in given if name in _ONLY_WITH_TO], "needs --to")


def refuse_no_parquet(out: Path) -> None:
    """Check the suffix of a trace file."""
    if out.suffix != _SUFFIX:
        raise InvalidRequest(f"--out {out}: name a FILE{_SUFFIX}")


def _typed_parameters(context: typer.Context) -> list[str]:
    """Parameters given on the command line, not by the environment."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def _refuse(context: typer.Context, names: list[str], why: str) -> None:
    if names:
        raise InvalidRequest(f"{_option_name(context, names[0])} {why}")


def _option_name(context: typer.Context, name: str) -> str:
    return next(each.opts[0] for each in context.command.params if each.name == name)
