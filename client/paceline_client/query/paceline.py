"""Queries for scripts and notebooks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from . import shapes
from .connection import Connection, NoAnswer, Query
from .rows import (
    ActiveAlertRow,
    AlertRow,
    FindingRow,
    FixRow,
    JobRow,
    Rows,
    StepRow,
    WindowRow,
    WorkerRow,
)

_API = "/api/v1"
PAGE = 500  # the server's largest page


class Paceline:
    """One server, with a token of the scope read.

    Address and token default to PACELINE_URL and PACELINE_TOKEN. Close it, or use it in a `with`
    block; use one instance per thread.

    Raises (each method, when its rows are read):
        NoAnswer: the server does not answer, even after retries for `patience_s`.
        Refused: it refused, for example `Denied` or `NotFound`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 10.0,
        page: int = PAGE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        url = url or os.environ.get("PACELINE_URL")
        token = token or os.environ.get("PACELINE_TOKEN")
        if not url or not token:
            missing = "an address: give url=, or set PACELINE_URL"
            if url:
                missing = "a token: give token=, or set PACELINE_TOKEN"
            raise ValueError(f"want {missing}")
        if not 1 <= page <= PAGE:
            raise ValueError(f"page: want 1 to {PAGE} rows at once, not {page}")
        self._page = page
        self._server = Connection(
            url, token, timeout_s=timeout_s, patience_s=patience_s, sleep=sleep
        )

    def __enter__(self) -> Paceline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def jobs(self) -> Rows[JobRow]:
        """All jobs that the token may see, by id."""
        return Rows(JobRow, lambda: map(shapes.job, self._items(f"{_API}/jobs", {})))

    def windows(self, job: str) -> Rows[WindowRow]:
        """A job's windows of all its runs, the newest first."""
        path = _of_job(job, "/windows")
        return Rows(
            WindowRow,
            lambda: (shapes.row(WindowRow, each, job_id=job) for each in self._items(path, {})),
        )

    def result(self, job: str, window: str = "latest") -> dict[str, Any]:
        """The whole result of a window, nested as in the API; see /docs of the server."""
        return self._server.get(_of_job(job, f"/windows/{_quoted(window)}"))

    def advice(
        self, job: str, window: str = "latest", **facts: str | float | None
    ) -> dict[str, Any]:
        """Fixes of a closed window with their predicted gain, nested as in the API.

        `facts` are the operation's parameters, such as `layers`, `scheduler` or `steps`; None is
        left out.
        """
        known = {name: str(value) for name, value in facts.items() if value is not None}
        return self._server.get(_of_job(job, f"/windows/{_quoted(window)}/advice"), known)

    def findings(self, job: str, window: str = "latest") -> Rows[FindingRow]:
        """The findings of a window, the most costly first."""
        path = _of_job(job, f"/windows/{_quoted(window)}")
        return Rows(
            FindingRow,
            lambda: shapes.findings(job, self._server.get(path, {"arrays": "false"})),
        )

    def workers(self, job: str, window: str = "latest") -> Rows[WorkerRow]:
        """Every worker of a window, by dp rank and stage."""
        path = _of_job(job, f"/windows/{_quoted(window)}/workers")
        return Rows(WorkerRow, lambda: shapes.workers(job, self._server.get(path)))

    def steps(
        self,
        job: str,
        *,
        epoch: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> Rows[StepRow]:
        """The steps of a run, ascending; by default of the current run."""
        return Rows(StepRow, lambda: self._steps(job, epoch, first, last))

    def alerts(self, job: str | None = None, *, kind: str | None = None) -> Rows[AlertRow]:
        """Transitions of alerts, of one job or of all, the newest first."""
        query = {"job": job, "kind": kind}
        return Rows(
            AlertRow, lambda: map(shapes.alert, self._items(f"{_API}/alerts/transitions", query))
        )

    def active_alerts(self, job: str | None = None) -> Rows[ActiveAlertRow]:
        """Alerts that are pending or fire now, the newest first."""
        path = f"{_API}/alerts"
        return Rows(
            ActiveAlertRow,
            lambda: map(shapes.active_alert, self._items(path, {"job": job})),
        )

    def fixes(self, job: str | None = None, *, state: str | None = None) -> Rows[FixRow]:
        """Predicted fixes of one job or of all, the newest first, and what they achieved."""
        path = f"{_API}/fixes" if job is None else _of_job(job, "/fixes")
        return Rows(FixRow, lambda: map(shapes.fix, self._items(path, {"state": state})))

    def _steps(
        self, job: str, epoch: int | None, first: int | None, last: int | None
    ) -> Iterator[StepRow]:
        # The server returns the last steps of a range, so page backwards.
        path, pages = _of_job(job, "/steps"), []
        while True:
            query = {"epoch": epoch, "first": first, "last": last, "limit": self._page}
            found = _listed(self._server.get(path, query))
            if found and last is not None and shapes.whole_number(found[-1], "step") > last:
                raise NoAnswer(
                    "the server gives steps that were not asked for: it is not Paceline's"
                )
            pages.append(found)
            if len(found) < self._page:
                break
            last = shapes.whole_number(found[0], "step") - 1
            if last < (first or 0):
                break
            # Stay in the same run even if another one begins meanwhile.
            epoch = shapes.whole_number(found[0], "epoch")
        for each in pages[::-1]:
            for fields in each:
                yield shapes.row(StepRow, fields, job_id=job, window_id=fields.get("window"))

    def _items(self, path: str, query: Query) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            page = self._server.get(path, {**query, "limit": self._page, "cursor": cursor})
            yield from _listed(page)
            following = page.get("next_cursor")
            if following is None:
                return
            if following == cursor:
                raise NoAnswer("the server gives the same page again: it is not Paceline's")
            cursor = following


def _listed(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = page.get("items")
    if not isinstance(items, list):
        raise NoAnswer("the answer has no items: it is not Paceline's address")
    if not all(isinstance(each, dict) for each in items):
        raise NoAnswer("an item of the answer is no object: it is not Paceline's address")
    return items


def _of_job(job: str, tail: str) -> str:
    return f"{_API}/jobs/{_quoted(job)}{tail}"


def _quoted(text: str) -> str:
    return quote(text, safe="")
