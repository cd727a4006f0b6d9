"""An import, pushed to a server as a finished run of a job that does not run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
import paceline_client

from app.cli import pushing
from app.cli.console import notes
from app.cli.replay import job_id_of, own_token
from app.cli.server import Server, usual_ranks
from app.errors import InvalidRequest, PacelineError
from app.trace.readers.merging import MAX_GROUP_ROWS

if TYPE_CHECKING:
    from app.cli.importing.target import Target
    from app.trace.job import Job
    from app.trace.readers.foreign import Described, Import, RankRows
    from app.trace.window import Ints

# Each has a thread and a connection of its own.
_MAX_WORKERS = 2_048
# So many are given away before the server has to have them, which bounds what is kept here.
_ROWS_AT_ONCE = 200_000


def push(opened: "Import", described: "Described", job: "Job", target: "Target") -> str:
    """Address of the job's page, once the server has everything.

    Raises:
        InvalidRequest: the job is there and may run, or the server refused something.
        Unavailable: the server does not answer.
        InvalidTrace: rows are wrong.
    """
    from rich.progress import Progress

    if target.url is None:
        raise InvalidRequest("--url: name the server")
    if job.parallelism.num_workers > _MAX_WORKERS:
        raise InvalidRequest(
            f"{job.parallelism.num_workers:,} workers are more than one import pushes "
            f"({_MAX_WORKERS:,}): write a file with --out and analyse that"
        )
    token = target.token or own_token()
    server = Server(target.url, token, target.job or job_id_of(job.name))
    before = server.epoch_of_ended(may_exist=target.run_key is not None)
    run_key = target.run_key or f"import-{described.run_key or time.time_ns()}"[:128]
    epoch = server.register(job, run_key, labels=described.labels)
    if before is not None and epoch <= before:
        raise InvalidRequest(
            f"--run-key {run_key}: job {server.job_id} has this run already: name a new one"
        )
    total = described.num_ops
    with (
        _ended(server),
        pushing.Complaints() as complaints,
        Progress(console=notes(), transient=True) as progress,
    ):
        recorders = _recorders(server, described, job, run_key, epoch)
        bar = progress.add_task("pushing", total=total)
        try:
            for num_ops in _pushed(opened, described, job, recorders, complaints):
                progress.advance(bar, num_ops)
        finally:
            for recorder in recorders:
                recorder.close(timeout_s=0.0)
    return server.page


@contextmanager
def _ended(server: Server) -> Iterator[None]:
    """The run ends with the block, also with one that fails: else it would be waited for."""
    try:
        yield
    except BaseException:
        with suppress(PacelineError):
            server.end()
        raise
    server.end()


def _recorders(
    server: Server, described: "Described", job: "Job", run_key: str, epoch: int
) -> list[paceline_client.Recorder]:
    ranks, hosts = usual_ranks(job), {}
    for rank, place in described.places.items():
        ranks[place.dp_rank * job.parallelism.pp_size + place.stage] = rank
        if place.host is not None:
            hosts[place.dp_rank, place.stage] = place.host
    max_ops = 2 * (_ROWS_AT_ONCE + MAX_GROUP_ROWS)
    return server.recorders(job, ranks, run_key=run_key, epoch=epoch, hosts=hosts, max_ops=max_ops)


def _pushed(
    opened: "Import",
    described: "Described",
    job: "Job",
    recorders: list[paceline_client.Recorder],
    complaints: pushing.Complaints,
) -> Iterator[int]:
    """How many more operations were given away, each time that some were."""
    begin_ns, num_pending = time.time_ns(), 0
    for chunks in _steps(opened.chunks()):
        shift_ns = 0
        if not described.has_absolute_times:  # laid end to end, from now on
            shift_ns = begin_ns - min(int(chunk.start_ns.min()) for chunk in chunks)
            ends = (int((chunk.start_ns + chunk.duration_ns).max()) for chunk in chunks)
            begin_ns = max(ends) + shift_ns
        num_ops = sum(chunk.step.size for chunk in chunks)
        for chunk in chunks:
            recorder = recorders[chunk.dp_rank * job.parallelism.pp_size + chunk.stage]
            _record(recorder, chunk, chunk.start_ns + shift_ns, job)
        for worker in {(chunk.dp_rank, chunk.stage) for chunk in chunks}:
            recorder = recorders[worker[0] * job.parallelism.pp_size + worker[1]]
            recorder.step_done(int(chunks[0].step[0]))
        num_pending += num_ops
        if num_pending >= _ROWS_AT_ONCE:
            pushing.deliver(recorders, complaints.messages)
            num_pending = 0
        yield num_ops
    pushing.deliver(recorders, complaints.messages)


def _steps(chunks: "Iterator[RankRows]") -> "Iterator[list[RankRows]]":
    """All chunks of a step, step after step."""
    found: list[RankRows] = []
    for chunk in chunks:
        if found and chunk.step[0] != found[0].step[0]:
            yield found
            found = []
        found.append(chunk)
    if found:
        yield found


def _record(
    recorder: paceline_client.Recorder, chunk: "RankRows", start_ns: "Ints", job: "Job"
) -> None:
    names = {code: job.op_types.name(code) for code in np.unique(chunk.optype).tolist()}
    told = {name: values.tolist() for name, values in chunk.more.items() if name != "gmc"}
    columns = (start_ns, chunk.duration_ns, chunk.seq_id, chunk.mc, chunk.mb_id)
    rows = zip(chunk.optype.tolist(), *(column.tolist() for column in columns), strict=True)
    step = int(chunk.step[0])
    for at, (code, *rest) in enumerate(rows):
        about = {name: values[at] for name, values in told.items() if values[at] >= 0}
        recorder.record(names[code], step, *rest, **about)
