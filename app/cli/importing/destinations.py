"""Writes an import to a trace file and its meta file, or pushes it as a finished run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import paceline_client
from rich.progress import Progress

from app.cli import pushing
from app.cli.ingest_client import IngestClient, default_ranks
from app.cli.output import written_whole
from app.cli.replay import job_id_of, local_token
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest, PacelineError
from app.trace.readers.disk_rows import MAX_GROUP_ROWS

if TYPE_CHECKING:
    from app.cli.importing.options import ImportTarget
    from app.trace.job import Job
    from app.trace.readers.importing import ImportSummary, OperationImport, RankRows
    from app.trace.window import Ints


def save_trace(
    opened: "OperationImport", described: "ImportSummary", job: "Job", out: Path
) -> None:
    """Write both files; atomic."""
    from app.trace.readers.published import collective_files, trace_files
    from app.trace.readers.published.meta import usual_path

    with Progress(console=stderr_console(), transient=True) as progress:
        bar = progress.add_task("writing", total=described.num_ops)
        with written_whole(usual_path(out)) as about, written_whole(out) as file:
            trace_files.write_import(opened, job, file, lambda rows: progress.advance(bar, rows))
            about.write(trace_files.import_meta_text(described, job).encode())
    # Collectives of an overwritten trace are not of this one.
    collective_files.usual_path(out).unlink(missing_ok=True)


# Each worker has a thread and a connection.
_MAX_WORKERS = 2_048
# Rows pushed before waiting for the server, which bounds memory.
_ROWS_PER_CHUNK = 200_000


def push_run(
    opened: "OperationImport", described: "ImportSummary", job: "Job", target: "ImportTarget"
) -> str:
    """Push the run and wait for the server; returns the address of the job's page."""
    if target.url is None:
        raise InvalidRequest("--url: name the server")
    sizes = job.parallelism
    if sizes.num_workers > _MAX_WORKERS:
        raise InvalidRequest(
            f"{sizes.num_workers:,} workers are more than an import can push "
            f"({_MAX_WORKERS:,}): write a file with --out and analyse that"
        )
    token = target.token or local_token()
    server = IngestClient(target.url, token, target.job or job_id_of(job.name))
    before = server.epoch_of_ended(may_exist=target.run_key is not None)
    run_key = target.run_key or f"import-{described.run_key or time.time_ns()}"[:128]
    epoch = server.register(job, run_key, labels=described.labels)
    if before is not None and epoch <= before:
        raise InvalidRequest(
            f"--run-key {run_key}: job {server.job_id} has this run already: name a new one"
        )
    ranks, hosts = default_ranks(job), {}
    for rank, place in described.places.items():
        ranks[place.dp_rank * sizes.pp_size + place.stage] = rank
        if place.host is not None:
            hosts[place.dp_rank, place.stage] = place.host
    with (
        _ended_run(server),
        pushing.client_warnings() as warnings,
        Progress(console=stderr_console(), transient=True) as progress,
        server.recorders(
            job,
            ranks,
            run_key=run_key,
            epoch=epoch,
            hosts=hosts,
            max_ops=2 * (_ROWS_PER_CHUNK + MAX_GROUP_ROWS),
        ) as recorders,
    ):
        bar = progress.add_task("pushing", total=described.num_ops)
        for num_ops in _push_chunks(opened, described, job, recorders, warnings):
            progress.advance(bar, num_ops)
    return server.page


@contextmanager
def _ended_run(server: IngestClient) -> Iterator[None]:
    """End the run with the block, even on errors: else the job would stay open."""
    try:
        yield
    except BaseException:
        with suppress(PacelineError):
            server.end()
        raise
    server.end()


def _push_chunks(
    opened: "OperationImport",
    described: "ImportSummary",
    job: "Job",
    recorders: list[paceline_client.Recorder],
    warnings: list[str],
) -> Iterator[int]:
    """Yields the number of operations of each part pushed."""
    begin_ns, num_pending = time.time_ns(), 0
    pp_size = job.parallelism.pp_size
    for step, step_chunks in groupby(opened.chunks(), key=lambda chunk: int(chunk.step[0])):
        chunks, shift_ns = list(step_chunks), 0
        if not described.has_absolute_times:  # laid end to end, from now on
            shift_ns = begin_ns - min(int(chunk.start_ns.min()) for chunk in chunks)
            ends = (int((chunk.start_ns + chunk.duration_ns).max()) for chunk in chunks)
            begin_ns = max(ends) + shift_ns
        num_ops = sum(chunk.step.size for chunk in chunks)
        workers = [chunk.dp_rank * pp_size + chunk.stage for chunk in chunks]
        for worker, chunk in zip(workers, chunks, strict=True):
            _record(recorders[worker], chunk, chunk.start_ns + shift_ns, job)
        for worker in set(workers):
            recorders[worker].step_done(step)
        num_pending += num_ops
        if num_pending >= _ROWS_PER_CHUNK:
            pushing.deliver(recorders, warnings)
            num_pending = 0
        yield num_ops
    pushing.deliver(recorders, warnings)


def _record(
    recorder: paceline_client.Recorder, chunk: "RankRows", start_ns: "Ints", job: "Job"
) -> None:
    names = {code: job.op_types.name(code) for code in np.unique(chunk.optype).tolist()}
    optional = {name: values.tolist() for name, values in chunk.more.items() if name != "gmc"}
    columns = (start_ns, chunk.duration_ns, chunk.seq_id, chunk.mc, chunk.mb_id)
    rows = zip(chunk.optype.tolist(), *(column.tolist() for column in columns), strict=True)
    step = int(chunk.step[0])
    for at, (code, *rest) in enumerate(rows):
        about = {name: values[at] for name, values in optional.items() if values[at] >= 0}
        recorder.record(names[code], step, *rest, **about)
