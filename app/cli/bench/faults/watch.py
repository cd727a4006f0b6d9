"""Looks at windows while the faults go on: a revision never goes back, nor changes unnumbered."""

import threading
from dataclasses import dataclass, field
from typing import Any

from app.cli.bench.faults.http import Http, Unreachable

EVERY_S = 0.5
_NEWEST = 100


@dataclass
class Watch:
    """Every revision of every window that was ever seen, and what was wrong with one."""

    violations: list[str] = field(default_factory=list)
    seen: int = 0
    _last: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def look(self, job: str, items: list[dict[str, Any]]) -> None:
        """Take in a page of a job's windows."""
        ids = [item["window_id"] for item in items]
        if len(set(ids)) < len(ids):
            self.violations.append(f"a window of {job} is listed twice: {ids}")
        for item in items:
            self.seen += 1
            self._compare(job, item)

    def _compare(self, job: str, item: dict[str, Any]) -> None:
        key = (job, item["window_id"])
        last = self._last.setdefault(key, item)
        if last == item:
            return
        if item["revision"] <= last["revision"]:
            self.violations.append(f"window {key}: after {last} came {item}")
        self._last[key] = item


def watching(watch: Watch, ports: list[int], token: str, jobs: set[str]) -> threading.Event:
    """Look at the jobs' newest windows again and again, until the event is set."""
    stop = threading.Event()

    def run() -> None:
        lines = [Http(port, token, timeout_s=3.0) for port in ports]
        turn = 0
        while not stop.wait(EVERY_S):
            turn += 1
            for job in sorted(jobs):
                _look(watch, lines[turn % len(lines)], job)

    threading.Thread(target=run, name="watch", daemon=True).start()
    return stop


def _look(watch: Watch, line: Http, job: str) -> None:
    try:
        page = line.ask("GET", f"/jobs/{job}/windows?limit={_NEWEST}")
    except Unreachable:
        return
    watch.look(job, page["items"])
