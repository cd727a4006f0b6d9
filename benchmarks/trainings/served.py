"""A Paceline on loopback for one benchmark, and what it found in a job's windows."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from app.result.window_result import WindowResult
from benchmarks.trainings.cases import NUM_STEPS, WINDOW_STEPS, Run
from tests.harness.processes import free_port, wait_until

TOKEN = "pl_" + "t" * 43
READY_WITHIN_S = 120.0
CLOSED_WITHIN_S = 300.0
_STOP_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window's result as the API answers it, and its operations as the zip file of an export."""

    result: WindowResult
    packed: bytes

    @property
    def name(self) -> str:
        """Of the window."""
        return str(self.result.window.id)


class Stopped(Exception):
    """The training has failed: there is nothing more to wait for."""


class PacelineServer:
    """`paceline serve` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = directory / "serve.log"
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            timeout=60,
        )
        command = [sys.executable, "-m", "app.cli", "serve", "--data-dir", str(directory / "data")]
        settings = {
            "PACELINE_TOKEN": TOKEN,
            "PACELINE_WINDOW_STEPS": str(WINDOW_STEPS),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--port", self.url.rpartition(":")[2]],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> "PacelineServer":
        try:
            wait_until(self._is_ready, f"paceline serve answers ({self._log})", READY_WITHIN_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def windows(self, run: Run, stop: Event) -> list[ClosedWindow]:
        """All windows of a run once it is over, oldest first.

        Raises:
            NotInTime: its last step is in none of them.
            Stopped: `stop` was set.
        """
        path = f"/api/v1/jobs/{quote(run.name, safe='')}/windows"
        wait_until(lambda: self._is_whole(path, stop), f"{run.name} is analysed", CLOSED_WITHIN_S)
        names = sorted(
            (item["window_id"] for item in self._get(path, limit=100)["items"]),
            key=lambda name: [int(part) for part in name.split("-")],
        )
        return [self._window(f"{path}/{name}") for name in names]

    def _window(self, path: str) -> ClosedWindow:
        answer = self._http.get(f"{path}/trace")
        answer.raise_for_status()
        return ClosedWindow(
            msgspec.convert(self._get(path, per_step=True), WindowResult), answer.content
        )

    def _is_whole(self, path: str, stop: Event) -> bool:
        if stop.wait(0.5):  # trainings run meanwhile: ask seldom
            raise Stopped
        items = self._http.get(path, params={"limit": 100})
        if items.status_code == 404:
            return False
        found = items.raise_for_status().json()["items"]
        return bool(found) and (
            max(item["last_step"] for item in found) == NUM_STEPS - 1
            and {item["state"] for item in found} <= {"complete", "incomplete"}
        )

    def _get(self, path: str, **query: Any) -> Any:
        return self._http.get(path, params=query).raise_for_status().json()

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"paceline serve has ended: {self._log.read_text()[-2000:]}")
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False
