"""A running Paceline, asked through the package that training workers use."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar
from urllib.parse import urlsplit

import paceline_client
from paceline_client import Refused, Unreachable

from app.cli.replay_clock import Timeline
from app.errors import InvalidRequest, Unavailable
from app.trace import user_types
from app.trace.job import Job
from app.trace.window import Window

AnswerT = TypeVar("AnswerT")


class Server:
    """One Paceline server, asked through the client package.

    Its refusals become this service's own errors, so that the command can tell them.
    """

    def __init__(self, url: str, token: str, job_id: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--url {url}: want an address like http://127.0.0.1:8642")
        self.url = url.rstrip("/")
        self.job_id = job_id
        self._token = token

    @property
    def page(self) -> str:
        """Address of the job's page."""
        return f"{self.url}/jobs/{self.job_id}"

    def register(self, job: Job, run_key: str) -> int:
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
                **asdict(job.parallelism),
            )
        )

    def end(self) -> None:
        """Tell that the job has ended."""
        self._asked(lambda: paceline_client.end_job(self.url, self._token, self.job_id))

    def recorders(
        self, window: Window, timeline: Timeline, *, run_key: str, epoch: int
    ) -> list[paceline_client.Recorder]:
        """One recorder for each worker, with room for everything that it will be given."""
        sizes = window.job.parallelism
        ranks = _ranks(window, timeline)
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
                max_ops=timeline.trace.num_ops + len(window.steps),
            )
            for worker, rank in enumerate(ranks)
        ]

    def _asked(self, ask: Callable[[], AnswerT]) -> AnswerT:
        try:
            return ask()
        except Unreachable as error:
            raise Unavailable(
                f"{self.url} does not answer ({error}): start it with paceline serve, or name "
                "another with --url"
            ) from error
        except Refused as error:
            raise InvalidRequest(f"{self.url} refused job {self.job_id}: {error}") from error


def _ranks(window: Window, timeline: Timeline) -> list[int]:
    sizes = window.job.parallelism
    ranks = [
        sizes.usual_rank(worker // sizes.pp_size, worker % sizes.pp_size)
        for worker in range(sizes.num_workers)
    ]
    for worker, rank in set(
        zip(timeline.worker.tolist(), timeline.trace.rank.tolist(), strict=True)
    ):
        ranks[worker] = rank
    return ranks
