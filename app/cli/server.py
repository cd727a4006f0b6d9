"""A running Paceline, asked through the package that training workers use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar
from urllib.parse import urlsplit

import paceline_client
from paceline_client import Refused, Unreachable
from paceline_client.transport import Transport, job_path

from app.cli.replay_clock import Timeline
from app.errors import InvalidRequest, Unavailable
from app.trace import user_types
from app.trace.job import Job
from app.trace.names import LONGEST_JOB, is_job

AnswerT = TypeVar("AnswerT")


class Server:
    """One Paceline server, asked through the client package.

    Its refusals become this service's own errors, so that the command can tell them.
    """

    def __init__(self, url: str, token: str, job_id: str, *, option: str = "--url") -> None:
        refuse_address(option, url)
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
        """Epoch of the job's last run, which has ended; None if there is no such job.

        Raises:
            InvalidRequest: there is one and `may_exist` is not so, or it has not ended.
        """
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
                f"{self.url} does not say whether there is a job {self.job_id} ({answer.detail})"
            )
        if not may_exist:
            raise InvalidRequest(
                f"job {self.job_id} is there already: name another with --job, or this new run of "
                "it with --run-key"
            )
        known = answer.json()
        if known.get("ended_at") is None:
            raise InvalidRequest(
                f"job {self.job_id} has a run that has not ended: name another with --job, or end "
                "it first"
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
                op_types=user_types.describe(job.op_types) or None,
                labels=labels or None,
                **asdict(job.parallelism),
            )
        )

    def end(self) -> None:
        """Tell that the job has ended."""
        self._asked(lambda: paceline_client.end_job(self.url, self._token, self.job_id))

    def recorders(
        self,
        job: Job,
        ranks: Sequence[int],
        *,
        run_key: str,
        epoch: int,
        hosts: Mapping[tuple[int, int], str],
        max_ops: int,
    ) -> list[paceline_client.Recorder]:
        """One recorder for each worker, by dp rank and stage, with room for so many operations.

        `ranks` are the workers' global ranks in that order, `hosts` where they ran as far as
        known: not on this machine, for all that anybody knows.
        """
        sizes = job.parallelism
        return [
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
                timing="host",  # what happens in this process is nobody's training
                gc_pauses=False,
                gpu_readings=False,
            )
            for worker, rank in enumerate(ranks)
        ]

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


def refuse_address(option: str, url: str) -> None:
    """Nothing, if a server may be at this address; `option` is the one that gave it.

    Raises:
        InvalidRequest: it may not. A message that repeats a password would put it into logs.
    """
    if "@" in url:
        raise InvalidRequest(
            f"{option}: no user or password in the address, want one like "
            "http://127.0.0.1:8642; the token is given with --token"
        )
    if not _is_address(url):
        raise InvalidRequest(f"{option} {url}: want an address like http://127.0.0.1:8642")


def refuse_job_id(job_id: str) -> None:
    """Nothing, if a job may be called this.

    Raises:
        InvalidRequest: it may not.
    """
    if not is_job(job_id):
        raise InvalidRequest(
            f"--job {job_id!r}: want 1 to {LONGEST_JOB} letters, digits, dots, dashes and "
            "underscores, a letter or digit first"
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def ranks_of(job: Job, timeline: Timeline) -> list[int]:
    """Each worker's global rank: as recorded, or the usual one where it recorded nothing."""
    ranks = usual_ranks(job)
    for worker, rank in set(
        zip(timeline.worker.tolist(), timeline.trace.rank.tolist(), strict=True)
    ):
        ranks[worker] = rank
    return ranks


def usual_ranks(job: Job) -> list[int]:
    """Each worker's usual global rank, by dp rank and stage."""
    sizes = job.parallelism
    return [
        sizes.usual_rank(worker // sizes.pp_size, worker % sizes.pp_size)
        for worker in range(sizes.num_workers)
    ]
