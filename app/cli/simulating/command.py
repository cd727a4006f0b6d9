"""`paceline simulate`: the trace of a simulated job with known faults."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.cli.simulating import options
from app.cli.simulating.options import refuse_ignored, refuse_no_parquet
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.synth.restarts import SimulatedRun


def simulate(
    context: typer.Context,
    out: options.Out = None,
    to: options.To = None,
    dp: options.Dp = 8,
    pp: options.Pp = 4,
    tp: options.Tp = 1,
    chunks: options.Chunks = 1,
    microbatches: options.Microbatches = 16,
    schedule: options.ScheduleName = None,
    steps: options.Steps = 16,
    sampled: options.Sampled = None,
    fault: options.FaultTexts = None,
    list_faults: options.ListFaults = False,
    layers: options.Layers = None,
    hidden: options.Hidden = None,
    seq_len: options.SeqLen = None,
    noise: options.NoiseCv = 0.015,
    tail: options.Tail = "log-normal",
    gpus_per_host: options.GpusPerHost = 8,
    clock_offset: options.ClockOffset = 0.0,
    drift_ppm: options.DriftPpm = 0.0,
    first_steps: options.FirstSteps = 0,
    evaluate_every: options.EvaluateEvery = 0,
    checkpoint_every: options.CheckpointEvery = 0,
    records_gpus: options.RecordsGpus = False,
    seed: options.Seed = 1,
    pace: options.Pace = "1",
    token: options.Token = None,
    job: options.JobId = None,
    straggler_study: options.StragglerStudy = False,
    json_out: options.JsonOut = None,
    chart: options.ChartOut = None,
) -> None:
    """Simulate a job with known faults: write its trace, and what each fault truly costs.

    Example: paceline simulate --fault slow-worker:dp=2,stage=1,factor=1.6 --out trace-slow.parquet
    """
    refuse_ignored(context)
    if straggler_study:
        _print_study(json_out, chart)
        return
    if list_faults:
        _print_faults()
        return
    if (out is None) == (to is None):
        raise InvalidRequest("give either --out FILE.parquet or --to URL")
    if out is not None:
        refuse_no_parquet(out)
    if to is not None:
        _refuse_target(to, job)

    from app.cli.simulating import job as described
    from app.cli.simulating.faults import parse_faults
    from app.cli.simulating.job import refuse_too_large
    from app.synth.cluster import Cluster
    from app.synth.job import SimulatedJob
    from app.synth.normal_variation import SpecialSteps
    from app.trace.job import Parallelism

    sizes = Parallelism(dp, pp, tp_size=tp, vpp_size=chunks)
    model = described.ModelOptions(layers, hidden, seq_len)
    parsed = parse_faults(fault or [])
    simulated = SimulatedJob(
        sizes,
        microbatches,
        name=_name(out, job),
        costs=described.costs(sizes, model, noise, tail),
        faults=parsed.faults,
        seed=seed,
        schedule=described.schedule_named(schedule, chunks),
        cluster=Cluster(gpus_per_host, clock_offset, drift_ppm),
        odd_steps=SpecialSteps(
            num_first=first_steps, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every
        ),
        records_gpus=records_gpus,
    )
    refuse_too_large(simulated, steps)
    attempts = parsed.runs(simulated, described.recorded_steps(steps, sampled))
    if out is not None:
        _write(attempts, out)
    elif to is not None:
        _stream(attempts, to, token, pace)


def _name(out: Path | None, job: str | None) -> str:
    from app.trace.readers.published import meta

    return meta.trace_name(out) if out is not None else job or "made"


def _refuse_target(url: str, job: str | None) -> None:
    """Check the address and the job id before looking for a token."""
    from app.cli.ingest_client import refuse_address, refuse_job_id

    refuse_address("--to", url)
    if job is not None:
        refuse_job_id(job)


def _write(attempts: "list[SimulatedRun]", out: Path) -> None:
    from rich.progress import track

    from app.cli.simulating.output import write_traces
    from app.cli.terminal import stderr_console

    def progress(steps: Sequence[int]) -> Iterable[int]:
        return track(steps, "simulating steps", console=stderr_console(), transient=True)

    for line in write_traces(attempts, out, progress):
        typer.echo(line)


def _stream(attempts: "list[SimulatedRun]", url: str, token: str | None, pace: str) -> None:
    from app.cli.ingest_client import IngestClient
    from app.cli.pushing import WallClock
    from app.cli.replay import job_id_of, local_token, parse_speed
    from app.cli.simulating.output import push_runs

    speed = parse_speed("--pace", pace)
    server = IngestClient(
        url, token or local_token(), job_id_of(attempts[0].job.name), option="--to"
    )
    push_runs(attempts, server, speed, WallClock())
    server.end()
    typer.echo(server.page)


def _print_faults() -> None:
    from app.cli.simulating.faults import fault_list

    typer.echo(fault_list())


def _print_study(json_out: Path | None, chart: Path | None) -> None:
    from rich.console import Console

    from app.cli.output import STANDARD_OUTPUT, write_json
    from app.cli.simulating.study import WIDTH as STUDY_WIDTH
    from app.cli.simulating.study import straggler_study, study_table, write_chart

    if chart is not None:
        write_chart(chart)
    if json_out is not None:
        write_json(straggler_study(), json_out)
    if json_out != STANDARD_OUTPUT:
        console = Console()
        # In a narrower console the table would lose digits.
        console.width = max(console.width, STUDY_WIDTH)
        console.print(study_table())
