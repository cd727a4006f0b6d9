"""`paceline advise`: what to do about a slow recorded job, and what each fix would win."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.options import MetaFile, TraceFile
from app.cli.output import STANDARD_OUTPUT, write_json

if TYPE_CHECKING:
    from app.advice.fix import AdviceCase, Facts


MAX_LENGTHS_BYTES = 32 << 20


def advise(
    trace: TraceFile,
    meta: MetaFile = None,
    steps: Annotated[
        str | None, typer.Option(help="Look at these steps only, as in 3,5-9.", metavar="STEPS")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Transformer layers of the model, as many on each stage: 1 to 1000."),
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
        float | None, typer.Option(help="Minutes from stopping the job to its next step.")
    ] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(help="Minutes between two checkpoints.")
    ] = None,
    checkpoint_save_minutes: Annotated[
        float | None,
        typer.Option(help="Minutes that writing a checkpoint takes, where their interval is free."),
    ] = None,
    mtbf_hours: Annotated[
        float | None, typer.Option(help="Hours between failures of the job, for the same.")
    ] = None,
    expert_loads: Annotated[
        str | None,
        typer.Option(help="Tokens of each expert of a layer, as in 812,40,95.", metavar="N,N"),
    ] = None,
    expert_share: Annotated[
        float | None, typer.Option(help="The experts' share of forward and backward, 0 to 1.")
    ] = None,
    document_lengths: Annotated[
        Path | None,
        typer.Option(
            help="File of the data set's document lengths in tokens, in the order of loading.",
            metavar="FILE",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a micro-batch may have, as memory allows.")
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

    from app.advice.advise import advice_record
    from app.advice.advise import advise as ask
    from app.advice.facts import facts_of
    from app.cli.output import refuse_to_overwrite
    from app.cli.terminal import stderr_console
    from app.cli.terminal.advice import render_advice

    facts = facts_of(
        layers=layers,
        layout=layout,
        scheduler=scheduler,
        restart_minutes=restart_minutes,
        checkpoint_minutes=checkpoint_minutes,
        checkpoint_save_minutes=checkpoint_save_minutes,
        mtbf_hours=mtbf_hours,
        expert_loads=expert_loads,
        expert_share=expert_share,
        document_lengths=None if document_lengths is None else _text_of(document_lengths),
        max_tokens=max_tokens,
    )
    refuse_to_overwrite("--json", json_out, trace, meta)
    with stderr_console().status("replaying"):
        case = _case(trace, meta, steps, facts)
        advice = ask(case)
    if json_out is not None:
        write_json(advice_record(advice), json_out)
    if json_out != STANDARD_OUTPUT:
        # Uncropped: what is to be pasted stays on one line, however narrow the terminal.
        Console().print(render_advice(case.replay.window.job.name, advice), crop=False)


def _text_of(path: Path) -> str:
    from app.errors import InvalidRequest

    try:
        with path.open("rb") as file:
            text = file.read(MAX_LENGTHS_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"--document-lengths: {path.name}: {error.strerror}: name a file that you may read"
        ) from error
    if len(text) > MAX_LENGTHS_BYTES:
        raise InvalidRequest(f"--document-lengths: {path.name} is larger than 32 MiB: give fewer")
    return text.decode("ascii", errors="replace")


def _case(trace: Path, meta: Path | None, steps: str | None, facts: "Facts") -> "AdviceCase":
    from app.cli.trace_input import errors_naming, read_trace
    from app.engine.replays import prepare
    from app.monitor import advice_case

    window = read_trace(trace, meta, steps)
    with errors_naming(trace, "record the step again, or choose other steps with --steps"):
        return advice_case(prepare(window), facts)
