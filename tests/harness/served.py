"""`paceline serve` as operators start it, with data and log in one directory, and the oracle."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.crash_points import command
from tests.harness.http_client import HttpClient, HttpResponse, answer_to
from tests.harness.oracle import OracleProcess
from tests.harness.processes import ControlledProcess, NotInTime, free_port, wait_until
from tests.harness.stack import READY_WITHIN_S, SETTINGS, TOKEN, unfinished_jobs

# It starts its parts one after the other, on a machine that may have other work.
STARTED_WITHIN_S = 180.0


class ServedStack:
    """One `paceline serve`; the same as `Stack` to a `Trial`. Use it from the main thread."""

    def __init__(
        self, data_dir: Path, of_oracle: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.ports = self.api_ports = [self.port]
        self.store_url = f"sqlite:///{data_dir / 'paceline.db'}"
        self._of_oracle = of_oracle
        self._exit = ExitStack()
        values = SETTINGS | {"data_dir": str(data_dir), "token": TOKEN, "port": str(self.port)}
        values |= dict(settings or {})
        environment = {f"PACELINE_{name.upper()}": value for name, value in values.items()}
        self.server = ControlledProcess(
            command((), "serve"), data_dir / "log", environment={**os.environ, **environment}
        )

    def __enter__(self) -> "ServedStack":
        with ExitStack() as undo:
            undo.callback(self._exit.close)
            self.oracle = self._exit.enter_context(OracleProcess(self._of_oracle))
            self._exit.callback(self._stop)
            self.server.start()
            self.wait_until_ready(STARTED_WITHIN_S)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _stop(self) -> None:
        if self.server.is_running():
            self.server.terminate()

    def heal(self) -> None:
        """Nothing to do: it has to recover by itself."""

    def wait_for_backends(self) -> None:
        """Nothing to wait for: they are parts of it."""

    def wait_until_ready(self, within_s: float = READY_WITHIN_S) -> float:
        """Seconds until it says that it is ready and lacks nothing.

        Raises:
            NotInTime: with what it says.
        """
        try:
            return wait_until(self.is_whole, "serve is ready", within_s)
        except NotInTime as error:
            raise NotInTime(f"{error}: {self.answer('/readyz')}\n{self.log_tails()}") from None

    def is_whole(self) -> bool:
        """Whether it is ready, with nothing degraded but by how full the disk is."""
        answer = self.answer("/readyz")
        return answer is not None and answer.status == 200 and not (
            set(answer.json()["degraded"]) - {"disk"}
        )  # fmt: skip

    def answer(self, path: str) -> HttpResponse | None:
        """The answer to a GET; None if there is none."""
        return answer_to(self.port, TOKEN, path)

    def get(self, path: str) -> Any:
        """The JSON that the API answers."""
        client = HttpClient(self.port, TOKEN)
        try:
            return client.ask("GET", path)
        finally:
            client.close()

    def unfinished(self) -> set[str] | None:
        """Ended jobs with steps outside closed windows; None while the store is unavailable."""
        return unfinished_jobs(self.store_url)

    def revive(self) -> None:
        """Nothing to do: it restarts its own processes."""

    def log_tails(self) -> str:
        """The end of its log."""
        return self.server.log_text()[-3000:]
