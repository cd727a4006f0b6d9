"""Who acknowledges and silences alerts while everything else dies: by the API, as people do it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from app.cli.bench.faults.http import Http, Unreachable
from app.cli.bench.faults.stack import TOKEN, Stack

_AGAIN_S = 0.1


class Person:
    """Does each thing until it is done; one for each thread. Close it when done."""

    def __init__(self, stack: Stack) -> None:
        self._line = Http(stack.api_ports[0], TOKEN)

    def close(self) -> None:
        """Free the connection."""
        self._line.close()

    def firing(self, job: str) -> dict[str, str]:
        """The job's alerts that fire now, with their rules; none where nobody answers."""
        try:
            found = self._line.ask("GET", f"/alerts/active?phase=firing&job={job}")
        except Unreachable:
            return {}
        return {each["fingerprint"]: each["rule"] for each in found["items"]}

    def silence(self, job: str) -> str:
        """Silence all of a job for an hour, that may not have begun; the silence's id."""
        body = {
            "matchers": [{"label": "job", "pattern": job}],
            "ends_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
            "comment": "bench",
        }
        made: str = _insist(lambda: self._line.ask("POST", "/silences", body))["silence_id"]
        return made

    def end_silence(self, silence_id: str) -> None:
        """From now on it is told again."""
        _insist(lambda: self._changed("DELETE", f"/silences/{silence_id}"))

    def acknowledge(self, fingerprint: str) -> None:
        """Somebody looks after it."""
        _insist(lambda: self._changed("POST", f"/alerts/{fingerprint}/acknowledge"))

    def _changed(self, method: str, path: str) -> None:
        answer = self._line.request(method, f"/api/v1{path}")
        if answer.status >= 300:
            raise Unreachable(f"{method} {path}: {answer.status} {answer.body!r}")


def _insist(deed: Callable[[], Any]) -> Any:
    while True:
        try:
            return deed()
        except Unreachable:
            time.sleep(_AGAIN_S)
