"""`paceline simulate`: the trace of a simulated job with known faults.

An option that would have no effect is an error.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import track

from app.cli.options import token_option
from app.cli.output import STANDARD_OUTPUT, write_json
from app.cli.replay import job_id_of, local_token, parse_speed
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from app.trace.job import Parallelism

if TYPE_CHECKING:
    from app.synth.job import SimulatedRun


def simulate(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the trace here, with its meta file and truth beside it.",
            metavar="FILE.parquet",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Push to this server instead.", metavar="URL")
    ] = None,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel ranks.")] = 8,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 4,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    chunks: Annotated[int, typer.Option(min=1, help="Model chunks per stage.")] = 1,
    microbatches: Annotated[int, typer.Option(min=1, help="Micro-batches per step.")] = 16,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="gpipe, 1f1b, interleaved or zero-bubble. Default: 1f1b, or interleaved if a "
            "stage has chunks.",
            metavar="NAME",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to record.")] = 16,
    sampled: Annotated[
        str | None,
        typer.Option(
            help="Record only the first 40 of every 400 steps, as in 40/400.",
            metavar="RECORDED/EVERY",
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="A fault, as in slow-worker:dp=3,stage=1,factor=1.6,from=20 or "
            "slow-host:host=host-001,factor=1.4. May be repeated. --list-faults has an example of "
            "each.",
            metavar="NAME:KEY=VALUE,...",
        ),
    ] = None,
    list_faults: Annotated[
        bool, typer.Option("--list-faults", help="Print every fault with its keys, and exit.")
    ] = False,
    layers: Annotated[
        str | None, typer.Option(help="Number of layers, or of each chunk as in 17,16,16,15.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="The model's hidden size.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens per micro-batch.")] = None,
    noise: Annotated[
        float, typer.Option(min=0, help="Coefficient of variation of computation times.")
    ] = 0.015,
    tail: Annotated[
        str, typer.Option(help="Kind of noise: log-normal, pareto or heavy-tailed.", metavar="KIND")
    ] = "log-normal",
    gpus_per_host: Annotated[int, typer.Option(min=1, help="GPUs per host.")] = 8,
    clock_offset: Annotated[
        float, typer.Option(min=0, max=3600, help="Largest error of the hosts' clocks, in seconds.")
    ] = 0.0,
    drift_ppm: Annotated[
        float,
        typer.Option(
            min=0, max=100_000, help="Largest drift of the hosts' clocks, in us per second."
        ),
    ] = 0.0,
    first_steps: Annotated[
        int, typer.Option(min=0, help="Number of first steps that take three times as long.")
    ] = 0,
    evaluate_every: Annotated[
        int, typer.Option(min=0, help="Steps between evaluations; 0: none.")
    ] = 0,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Steps between checkpoints; 0: none.")
    ] = 0,
    records_gpus: Annotated[
        bool, typer.Option("--gpus-tell", help="Record the GPUs' clocks and temperatures.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed; the same seed gives the same trace.")
    ] = 1,
    pace: Annotated[
        str, typer.Option(help="With --to: speed relative to real time, or max.")
    ] = "1",
    token: Annotated[str | None, token_option("With --to: the server's token")] = None,
    job: Annotated[
        str | None, typer.Option(help="With --to: id of the job. Default: made.")
    ] = None,
    straggler_study: Annotated[
        bool,
        typer.Option(
            "--straggler-study",
            help="Print the efficiency of 8 to 100,000 workers that wait for the slowest one.",
        ),
    ] = False,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="With the study: write it here; - is standard output."),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(help="With the study: write a chart here.", metavar="FILE.html")
    ] = None,
) -> None:
    """Simulate a job with known faults: write its trace, and what each fault truly costs.

    Example: paceline simulate --fault slow-worker:dp=2,stage=1,factor=1.6 --out trace-slow.parquet
    """
    _refuse_ignored(context)
    if straggler_study:
        _print_study(json_out, chart)
        return
    if list_faults:
        from app.cli.simulating.job import fault_list

        typer.echo(fault_list())
        return
    if (out is None) == (to is None):
        raise InvalidRequest("give either --out FILE.parquet or --to URL")
    if out is not None and out.suffix != ".parquet":
        raise InvalidRequest(f"--out {out}: name a FILE.parquet")
    if to is not None:
        from app.cli.exporting.http_client import parsed_address
        from app.cli.ingest_client import refuse_job_id

        # Before looking for a token.
        parsed_address("--to", to)
        if job is not None:
            refuse_job_id(job)

    from app.cli.simulating import job as described
    from app.synth.cluster import Cluster
    from app.synth.job import SimulatedJob
    from app.synth.normal_variation import SpecialSteps
    from app.trace.readers.published import meta

    sizes = Parallelism(dp, pp, tp_size=tp, vpp_size=chunks)
    model = described.ModelOptions(layers, hidden, seq_len)
    parsed = described.parse_faults(fault or [])
    simulated = SimulatedJob(
        sizes,
        microbatches,
        name=meta.trace_name(out) if out is not None else job or "made",
        costs=described.costs(sizes, model, noise, tail),
        faults=tuple(fault for _, fault in parsed.by_text),
        seed=seed,
        schedule=described.schedule_named(schedule, chunks),
        cluster=Cluster(gpus_per_host, clock_offset, drift_ppm),
        odd_steps=SpecialSteps(
            num_first=first_steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every
        ),
        records_gpus=records_gpus,
    )
    described.refuse_too_large(simulated, steps)
    attempts = parsed.runs(simulated, described.recorded_steps(steps, sampled))
    if out is not None:
        _write(attempts, out)
    elif to is not None:
        _stream(attempts, to, token, pace)


def _write(attempts: "list[SimulatedRun]", out: Path) -> None:
    from app.cli.simulating.output import write_traces

    def progress(steps: Sequence[int]) -> Iterable[int]:
        return track(steps, "simulating steps", console=stderr_console(), transient=True)

    for line in write_traces(attempts, out, progress):
        typer.echo(line)


def _stream(attempts: "list[SimulatedRun]", url: str, token: str | None, pace: str) -> None:
    from app.cli.ingest_client import IngestClient
    from app.cli.pushing import WallClock
    from app.cli.simulating.output import push_runs

    speed = parse_speed("--pace", pace)
    job_id = job_id_of(attempts[0].job.name)
    server = IngestClient(url, token or local_token(), job_id, option="--to")
    push_runs(attempts, server, speed, WallClock())
    server.end()
    typer.echo(server.page)


def _print_study(json_out: Path | None, chart: Path | None) -> None:
    from app.cli.simulating import study

    if chart is not None:
        study.write_chart(chart)
    if json_out is not None:
        write_json(study.straggler_study(), json_out)
    if json_out != STANDARD_OUTPUT:
        console = Console()
        # In a narrower console the table would lose digits.
        console.width = max(console.width, study.WIDTH)
        console.print(study.study_table())


_ONLY_WITH_STUDY = ("json_out", "chart")
_ONLY_WITH_TO = ("pace", "token", "job")


def _refuse_ignored(context: typer.Context) -> None:
    """Check that every given option has an effect."""
    # On the command line, not by the environment.
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    for alone, with_it in (("straggler_study", _ONLY_WITH_STUDY), ("list_faults", ())):
        if alone in given:
            others = [name for name in given if name not in (alone, *with_it)]
            _refuse(context, others, f"has no effect with {_option_name(context, alone)}")
            return
    _refuse(
        context, [name for name in given if name in _ONLY_WITH_STUDY], "needs --straggler-study"
    )
    if "to" not in given:
        _refuse(context, [name for name in given if name in _ONLY_WITH_TO], "needs --to")


def _refuse(context: typer.Context, names: list[str], why: str) -> None:
    if names:
        raise InvalidRequest(f"{_option_name(context, names[0])} {why}")


def _option_name(context: typer.Context, name: str) -> str:
    return next(param.opts[0] for param in context.command.params if param.name == name)
