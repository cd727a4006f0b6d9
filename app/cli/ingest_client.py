"""Registers runs and opens recorders on a server, through the package `paceline_client`.

Queries go through `app.cli.exporting.http_client`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

import paceline_client
from paceline_client import Refused, Unreachable
from paceline_client.sending.registration import request_end
from paceline_client.sending.transport import Transport, job_path

from app.cli.exporting.http_client import parsed_address
from app.cli.pushing import PushTimeline
from app.errors import InvalidRequest, Unavailable
from app.trace import ops
from app.trace.job import MAX_JOB_CHARS, Job, is_job_name

AnswerT = TypeVar("AnswerT")


class IngestClient:
    """One Paceline server; raises the client package's errors as `PacelineError`."""

    def __init__(self, url: str, token: str, job_id: str, *, option: str = "--url") -> None:
        parsed_address(option, url)
        refuse_job_id(job_id)
        self.url = url.rstrip("/")
        self.job_id = job_id
        self._token = token
        self._option = option

    @property
    def page(self) -> str:
        """Address of the job's page."""
        return f"{self.url}/jobs/{self.job_id}"

    def epoch_of_ended(self, *, may_exist: bool) -> int | None:
        """Epoch of the job's last run, which must have ended; None if there is no such job."""
        transport = Transport(self.url, self._token)
        path = job_path(self.job_id)
        try:
            answer = self._asked(lambda: transport.request("GET", path, b"", "application/json"))
        finally:
            transport.close()
        if answer.status == 404:
            return None
        if not answer.ok:
            raise InvalidRequest(
                f"{self.url} did not answer whether job {self.job_id} exists ({answer.detail})"
            )
        if not may_exist:
            raise InvalidRequest(
                f"job {self.job_id} exists: name another with --job, or add a run with --run-key"
            )
        known = answer.json()
        if known.get("ended_at") is None:
            raise InvalidRequest(
                f"job {self.job_id} is still running: name another with --job, or end it first"
            )
        return int(known["epoch"])

    def register(self, job: Job, run_key: str, *, labels: Mapping[str, str] | None = None) -> int:
        """Epoch of a new run of the job."""
        return self._asked(
            lambda: paceline_client.register(
                self.url,
                self._token,
                self.job_id,
                name=job.name,
                run_key=run_key,
                gpus=job.num_gpus,
                op_types=ops.describe_op_types(job.op_types) or None,
                labels=labels or None,
                **asdict(job.parallelism),
            )
        )

    def end(self) -> None:
        """Report the end of the job."""
        self._asked(lambda: request_end(self.url, self._token, self.job_id))

    @contextmanager
    def recorders(
        self,
        job: Job,
        ranks: Sequence[int],
        *,
        run_key: str,
        epoch: int,
        hosts: Mapping[tuple[int, int], str],
        max_ops: int,
    ) -> Iterator[list[paceline_client.Recorder]]:
        """One recorder per worker, by dp rank and stage, with room for so many operations.

        `ranks` are the workers' global ranks in that order, `hosts` where they ran as far as
        known (not on this machine). They are closed with the block.
        """
        sizes = job.parallelism
        recorders = [
            paceline_client.start(
                self.job_id,
                self.url,
                self._token,
                rank=rank,
                dp_rank=worker // sizes.pp_size,
                stage=worker % sizes.pp_size,
                **asdict(sizes),
                run_key=run_key,
                epoch=epoch,
                host=hosts.get(divmod(worker, sizes.pp_size), ""),
                max_ops=max_ops,
                timing="host",  # this process does not train
                gc_pauses=False,
                gpu_readings=False,
            )
            for worker, rank in enumerate(ranks)
        ]
        try:
            yield recorders
        finally:
            for recorder in recorders:
                recorder.close(timeout_s=0.0)

    def _asked(self, ask: Callable[[], AnswerT]) -> AnswerT:
        try:
            return ask()
        except Unreachable as error:
            raise Unavailable(
                f"{self.url} does not answer ({error}): start it with paceline serve, or name "
                f"another with {self._option}"
            ) from error
        except Refused as error:
            raise InvalidRequest(f"{self.url} refused job {self.job_id}: {error}") from error


def refuse_job_id(job_id: str) -> None:
    """Check a job id."""
    if not is_job_name(job_id):
        raise InvalidRequest(
            f"--job {job_id!r}: want 1 to {MAX_JOB_CHARS} letters, digits, dots, dashes and "
            "underscores, a letter or digit first"
        )


def global_ranks(job: Job, timeline: PushTimeline) -> list[int]:
    """Each worker's global rank: as recorded, or the default if it recorded nothing."""
    ranks = default_ranks(job)
    for worker, rank in set(
        zip(timeline.worker.tolist(), timeline.trace.rank.tolist(), strict=True)
    ):
        ranks[worker] = rank
    return ranks


def default_ranks(job: Job) -> list[int]:
    """Each worker's default global rank, by dp rank and stage."""
    ranks: list[int] = job.parallelism.usual_ranks().ravel().tolist()
    return ranks
