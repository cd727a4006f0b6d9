"""A whole Paceline on loopback: real queue server, API and consumer as processes, real store."""

import os
import sys
from pathlib import Path
from typing import Any

import httpx

from app.ingest.embedded import EmbeddedQueue
from tests.harness.processes import free_port, wait_until
from tests.harness.warm_start import WarmProcess

__all__ = ["TOKEN", "Stack", "free_port", "wait_until"]

TOKEN = "pl_" + "t" * 43
_READY_WITHIN_S = 60.0


class Stack:
    """The processes of one Paceline, until the block ends."""

    def __init__(self, directory: Path, database_url: str, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database_url = database_url
        self._queue = EmbeddedQueue(directory)
        self._directory = directory
        self._settings = settings
        self._processes: list[WarmProcess] = []
        self.http = httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            timeout=10,
        )

    def __enter__(self) -> "Stack":
        self._redis_url = self._queue.start()
        try:
            self._run("migrate").wait(_READY_WITHIN_S)
            self._processes = [self._run("api"), self._run("consumer")]
            wait_until(self.answers, "the API answers")
        except BaseException:
            self.__exit__()  # else the processes would outlive the test
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._queue.stop()

    def answers(self) -> bool:
        """Whether the API is ready."""
        try:
            answer = httpx.get(f"{self.url}/readyz", trust_env=False, timeout=2)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def get(self, path: str, **params: Any) -> Any:
        """The JSON body of a GET."""
        answer = self.http.get(path, params=params)
        answer.raise_for_status()
        return answer.json()

    def _run(self, command: str) -> WarmProcess:
        environment = {
            **os.environ,
            "PACELINE_REDIS_URL": self._redis_url,
            "PACELINE_DATABASE_URL": self.database_url,
            "PACELINE_DATA_DIR": str(self._directory),
            "PACELINE_PORT": str(self.port),
            "PACELINE_TOKEN": TOKEN,
            "PACELINE_LEASE_S": "2",
            **{f"PACELINE_{key.upper()}": value for key, value in self._settings.items()},
        }
        with (self._directory / f"{command}.log").open("ab") as log:
            return WarmProcess([sys.executable, "-m", "app.cli", command], environment, log)
