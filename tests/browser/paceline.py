"""A Paceline as its user starts it, and made jobs that are pushed into it."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from app.ingest.wire import codec
from app.synth.job import SimulatedJob
from tests.browser.waiting import wait_until
from tests.e2e.producers import batch_of
from tests.e2e.stack import free_port

_ADDRESS = re.compile(r"Page:   (http://127\.0\.0\.1:\d+)\nToken:  in (\S+)\n")
_STOPS_WITHIN_S = 60.0


class Paceline:
    """A running `paceline demo` or `paceline serve`, with the token of the file that it named.

    `link` is what it prints to a terminal.
    """

    def __init__(self, url: str, token: str, pid: int) -> None:
        self.pid = pid
        self.url, self.token = url, token
        self.link = f"{url}/#token={token}"
        self.http = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            trust_env=False,
            timeout=60,
        )

    def get(self, path: str, **params: Any) -> Any:
        """The JSON that the API answers."""
        answer = self.http.get(path, params=params)
        answer.raise_for_status()
        return answer.json()

    def figure(self, job_id: str, name: str) -> float | None:
        """A figure of a job; None as long as it, or the job, is not there."""
        jobs = {job["job_id"]: job for job in self.get("/jobs")["items"]}
        value: float | None = jobs.get(job_id, {}).get(name)
        return value

    def register(self, job_id: str, made: SimulatedJob, **parts: Any) -> int:
        """The epoch of a new run."""
        sizes = made.parallelism
        parallelism = {"dp_size": sizes.dp_size, "pp_size": sizes.pp_size, "tp_size": sizes.tp_size}
        body = {"parallelism": parallelism, "run_key": "run-1", **parts}
        answer = self.http.put(f"/jobs/{job_id}", json=body)
        answer.raise_for_status()
        return int(answer.json()["epoch"])

    def push(
        self,
        job_id: str,
        made: SimulatedJob,
        epoch: int,
        num_steps: int,
        host: str | None = None,
        *,
        first: int = 0,
    ) -> None:
        """Returns when so many steps of every worker are analysed; each worker is on that host.

        Those before `first` have been pushed.
        """
        sizes = made.parallelism
        for step in range(first, num_steps):
            trace = made.make([step])
            for dp_rank in range(sizes.dp_size):
                for stage in range(sizes.pp_size):
                    batch = replace(batch_of(trace, epoch, dp_rank, stage, step), host=host)
                    self.push_body(job_id, codec.encode(batch))
        wait_until(
            lambda: len(self.get(f"/jobs/{job_id}/steps")["items"]) == num_steps,
            f"{num_steps} steps of {job_id} are analysed",
        )

    def push_body(self, job_id: str, body: bytes) -> None:
        """Returns when a batch was acknowledged."""
        headers = {"Content-Type": "application/vnd.paceline.ops+msgpack"}
        answer = self.http.post(f"/jobs/{job_id}/ops", content=body, headers=headers)
        assert answer.status_code == 202, answer.text


@contextlib.contextmanager
def running(command: str, directory: Path, **settings: str) -> Iterator[Paceline]:
    """`paceline demo` or `paceline serve` on a free port, stopped as Ctrl-C would."""
    log = directory / f"{command}.log"
    arguments = [command, "--data-dir", str(directory / "data"), "--port", str(free_port())]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    mine = {f"PACELINE_{name.upper()}": value for name, value in settings.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", *arguments],
            env={**others, **mine},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or _ADDRESS.search(log.read_text()) is not None,
            f"paceline {command} prints its address",
        )
        found = _ADDRESS.search(log.read_text())
        assert found, log.read_text()
        token = settings.get("token") or Path(found[2]).read_text().strip()
        assert token not in log.read_text()
        paceline = Paceline(found[1], token, process.pid)
        yield paceline
        paceline.http.close()
    finally:
        process.terminate()
        try:
            process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
