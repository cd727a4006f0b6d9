"""`paceline advise`: what to do about a slow recorded job, and what each fix would win."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.options import MetaFile, TraceFile
from app.cli.output import STANDARD_OUTPUT, write_json
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.advice.fix import AdviceCase, Facts

MAX_LAYERS = 1000  # the search moves them one by one


def advise(
    trace: TraceFile,
    meta: MetaFile = None,
    steps: Annotated[
        str | None, typer.Option(help="Look at these steps only, as in 3,5-9.", metavar="STEPS")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_LAYERS,
            help="Transformer layers of the model, as many on each stage.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Layers of each stage where they differ, as in 9,9,9,6.", metavar="N,N"),
    ] = None,
    scheduler: Annotated[
        Literal["slurm", "kubernetes"] | None,
        typer.Option(help="What runs the job: only its commands are printed."),
    ] = None,
    restart_minutes: Annotated[
        float | None, typer.Option(min=0, help="Minutes from stopping the job to its next step.")
    ] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(min=0, help="Minutes between two checkpoints.")
    ] = None,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="Write the advice here; - is standard output."),
    ] = None,
) -> None:
    """Say what to do about a slow job: each fix with its predicted gain, ready to paste.

    Example: paceline advise trace-ST.parquet --layers 36
    """
    from rich.console import Console

    from app.advice.advise import advice_as_json
    from app.advice.advise import advise as ask
    from app.advice.fix import Facts
    from app.cli.output import refuse_to_overwrite
    from app.cli.terminal import stderr_console
    from app.cli.terminal.advice import render_advice

    if layers is not None and layout is not None:
        raise InvalidRequest("give either --layers or --layout, not both")
    facts = Facts(layers, _layout(layout), scheduler, restart_minutes, checkpoint_minutes)
    refuse_to_overwrite("--json", json_out, trace, meta)
    with stderr_console().status("replaying"):
        case = _case(trace, meta, steps, facts)
        advice = ask(case)
    if json_out is not None:
        write_json(advice_as_json(advice), json_out)
    if json_out != STANDARD_OUTPUT:
        # Uncropped: what is to be pasted stays on one line, however narrow the terminal.
        Console().print(render_advice(case.replay.window.job.name, advice), crop=False)


def _layout(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise InvalidRequest("--layout wants a whole number of layers for each stage: 9,9,9,6")
    layers = tuple(map(int, parts))
    if sum(layers) > MAX_LAYERS:
        raise InvalidRequest(
            f"--layout has {sum(layers)} layers: at most {MAX_LAYERS} are searched"
        )
    return layers


def _case(trace: Path, meta: Path | None, steps: str | None, facts: "Facts") -> "AdviceCase":
    from app.cli.trace_input import errors_naming, read_trace
    from app.engine.replays import prepare
    from app.monitor import advice_case

    window = read_trace(trace, meta, steps)
    with errors_naming(trace, "record the step again, or choose other steps with --steps"):
        return advice_case(prepare(window), facts)
