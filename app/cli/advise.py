"""`paceline advise`: what to do about a slow recorded job, and what each fix would win."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from app import formatting
from app.cli.options import MetaFile, TraceFile, json_option
from app.cli.output import printable, printable_lines, refuse_to_overwrite
from app.cli.terminal import plain_table, right_aligned, show, stderr_console
from app.cli.trace_input import errors_naming, read_trace
from app.errors import InvalidRequest
from app.formatting import TIMES

if TYPE_CHECKING:
    from app.advice.advise import Advice, FixSet
    from app.advice.fix import Fix, Need, NotOffered


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
    json_out: Annotated[Path | None, json_option("the advice")] = None,
) -> None:
    """Say what to do about a slow job: each fix with its predicted gain, ready to paste.

    Example: paceline advise trace-ST.parquet --layers 36
    """
    from app.advice.advise import advice_record
    from app.advice.advise import advise as ask
    from app.advice.facts import facts_of
    from app.engine.replays import prepare
    from app.monitor import advice_case

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
        window = read_trace(trace, meta, steps)
        with errors_naming(trace, "record the step again, or choose other steps with --steps"):
            case = advice_case(prepare(window), facts)
        advice = ask(case)
    heading = Text(_headline(printable(window.job.name), advice), style="bold")
    # Uncropped: what is to be pasted stays on one line, however narrow the terminal.
    show(
        json_out, lambda: advice_record(advice), lambda: Group(heading, *_parts(advice)), crop=False
    )


def _text_of(path: Path) -> str:
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


def _headline(job: str, advice: "Advice") -> str:
    if advice.withheld is not None:
        return f"No advice for {job}: {advice.withheld}."
    if not advice.fixes:
        return f"No fix is known for {job}."
    best = advice.fixes[0]
    return (
        f"{printable(best.title)}: {job} would run {best.speed_up:.2f}{TIMES} as fast, "
        f"{best.gpu_hours_per_day:,.0f} GPU-hours a day less."
    )


def _parts(advice: "Advice") -> Iterator[RenderableType]:
    """All fixes, the one that wins most first."""
    for number, fix in enumerate(advice.fixes, 1):
        yield Text(f"\n{number}. {printable(fix.title)}", style="bold")
        yield Padding(_figures(fix), (0, 0, 0, 3))
        for snippet in fix.paste:
            yield Padding(Text(f"{snippet.label}:", style="dim"), (0, 0, 0, 3))
            yield Text(printable_lines(snippet.text), no_wrap=True, overflow="ignore")
        for need in fix.needs:
            yield Padding(Text(f"To complete this: {_need(need)}.", style="dim"), (0, 0, 0, 3))
    if advice.together is not None:
        names = " + ".join(fix.name for fix in advice.together.fixes)
        yield Text(f"\nTogether: {names}", style="bold")
        yield Padding(_together(advice.together), (0, 0, 0, 3))
    if advice.not_offered:
        yield Text("\nNot advised", style="bold")
        rows = map(_refused_row, advice.not_offered)
        yield plain_table(["fix", Column("reason", style="dim")], rows, show_header=False)


def _figures(fix: "Fix") -> Table:
    fastest_s, slowest_s = fix.step_range_s
    least, most = fix.gpu_hours_per_day_range
    times = f"instead of {fix.before_s:.3f} s; from {fastest_s:.3f} to {slowest_s:.3f} s"
    hours = f"GPU-hours; from {least:,.1f} to {most:,.1f}"
    sure = formatting.confidence_figure(fix.confidence)
    rows: list[tuple[RenderableType, ...]] = [
        ("step", f"{fix.step_s:.3f} s", times),
        ("speed-up", f"{fix.speed_up:.3f}{TIMES}", "simulated"),
        ("won a day", f"{fix.gpu_hours_per_day:,.1f}", hours),
        ("confidence", sure, "of the cause and the replay"),
        ("pays after", *_pays(fix)),
        ("risk", "", Text(printable(fix.risk))),
    ]
    return plain_table(["", *right_aligned(""), Column(style="dim")], rows, show_header=False)


def _together(fixes: "FixSet") -> Text:
    return Text(
        f"step {fixes.step_s:.3f} s instead of {fixes.before_s:.3f} s: {fixes.speed_up:.3f}{TIMES} "
        f"as fast, {fixes.gpu_hours_per_day:,.1f} GPU-hours a day less; simulated together, as "
        "gains do not add up"
    )


def _pays(fix: "Fix") -> tuple[str, str]:
    if not fix.stops_job:
        return "at once", "the job need not stop"
    if fix.pays_after_minutes is None:
        return "not known", "the cost of a restart was not given"
    return f"{fix.pays_after_minutes:,.0f} min", f"of training, for one restart; {_lost(fix)}"


def _lost(fix: "Fix") -> str:
    """What the cause has cost beside what the restart costs (ski rental)."""
    if fix.lost_minutes is None or fix.stop_minutes is None:
        return "what was lost since the onset is not known"
    verdicts = {True: "act now", False: "not yet worth a stop", None: "it began before the record"}
    least = "at least " if fix.lost_is_at_least else ""
    lost = f"{least}{fix.lost_minutes:,.1f} of {fix.stop_minutes:,.0f} min lost so far"
    return f"{lost}: {verdicts[fix.pays_now]}"


def _need(need: "Need") -> str:
    """What is needed, with the option that takes it."""
    if need.fact is None:
        return need.text
    return f"{need.text} (--{need.fact.replace('_', '-')})"


def _refused_row(refused: "NotOffered") -> tuple[str, Text]:
    needs = f" (needs {'; '.join(map(_need, refused.needs))})" if refused.needs else ""
    return refused.name, Text(formatting.with_times_sign(printable(f"{refused.reason}{needs}")))
