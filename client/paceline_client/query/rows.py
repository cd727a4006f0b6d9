"""Rows of each kind, fetched page by page while they are read. None is "not known"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from typing import Any, Generic, TypedDict, TypeVar, cast

from .connection import QueryError


class JobRow(TypedDict):
    """A training job and how it is doing."""

    job_id: str
    name: str
    state: str
    epoch: int
    gpus: int
    dp_size: int
    pp_size: int
    tp_size: int
    vpp_size: int
    dsp_size: int
    ep_size: int
    world_size: int
    framework: str | None
    labels: str  # a JSON object
    registered_at: str
    ended_at: str | None
    last_data_at: str | None
    last_step: int | None
    slowdown: float | None
    gpu_time_wasted: float | None
    verdict: str | None
    latest_window: str | None
    num_silent_ranks: int
    ops_accepted: int | None
    ops_late: int | None


class WindowRow(TypedDict):
    """Some successive steps that were analysed together."""

    job_id: str
    window_id: str
    epoch: int
    first_step: int
    last_step: int
    revision: int
    state: str
    num_steps: int
    slowdown: float | None
    verdict: str | None
    updated_at: str


class FindingRow(TypedDict):
    """A cause found in a window, with its culprits; the first one has columns."""

    job_id: str
    window_id: str
    cause: str
    cost: float | None
    confidence: float
    score: float
    persistence: str | None
    onset_step: int | None
    dp_rank: int | None
    stage: int | None
    host: str | None
    num_culprits: int
    culprits: str  # a JSON list of objects
    sentence: str


class WorkerRow(TypedDict):
    """One worker in a window: what the job would lose if only this worker were slow."""

    job_id: str
    window_id: str
    dp_rank: int
    stage: int
    host: str | None
    slowdown: float | None
    slowdown_estimate: float | None


class StepRow(TypedDict):
    """One training step, in seconds; without figures where it was skipped."""

    job_id: str
    epoch: int
    step: int
    recorded_s: float | None
    simulated_s: float | None
    ideal_s: float | None
    slowdown: float | None
    window_id: str
    skipped_reason: str | None


class AlertRow(TypedDict):
    """One transition of an alert."""

    event_id: int
    at: str
    kind: str
    severity: str
    job_id: str
    rule: str
    subject: str
    sentence: str
    value: float | None
    threshold: float | None
    slowdown: float | None
    gpu_hours_lost_per_hour: float | None
    cause: str | None
    window_id: str | None
    fingerprint: str
    actor: str | None
    reason: str | None


class ActiveAlertRow(TypedDict):
    """An alert that is pending or fires now."""

    job_id: str
    rule: str
    subject: str
    phase: str
    severity: str
    began_at: str
    firing_at: str | None
    sentence: str
    value: float | None
    threshold: float | None
    slowdown: float | None
    gpu_hours_lost_per_hour: float | None
    cause: str | None
    window_id: str | None
    fingerprint: str
    acknowledged_at: str | None
    acknowledged_by: str | None
    assigned_to: str | None
    note: str | None
    is_silenced: bool
    is_inhibited: bool


class FixRow(TypedDict):
    """A predicted fix, and what it has achieved."""

    job_id: str
    fix_id: str
    fix: str
    title: str
    sentence: str
    state: str
    tracked_by: str | None
    window: str
    step_s_before: float
    step_s: float
    speed_up: float
    gpu_hours_per_day: float
    applied_epoch: int | None
    applied_step: int | None
    achieved_speed_up: float | None
    windows: str  # a JSON list of ids
    note: str | None
    notified: bool | None
    predicted_at: str
    updated_at: str


Row = TypeVar("Row")


class Rows(Generic[Row]):
    """Flat dicts with equal keys; each iteration queries the server again.

    Unknown values are None. Times are texts in UTC, as 2026-01-31T12:00:00Z.
    """

    def __init__(self, row_type: type[Row], fetch: Callable[[], Iterator[Row]]) -> None:
        self._fetch = fetch
        self.columns: tuple[str, ...] = tuple(row_type.__annotations__)
        types = {name: str(each) for name, each in row_type.__annotations__.items()}
        self._numbers = [name for name, each in types.items() if "int" in each or "float" in each]

    def __iter__(self) -> Iterator[Row]:
        return self._fetch()

    def all(self) -> list[Row]:
        """All rows, for example for `pandas.DataFrame`."""
        return [*self]

    def first(self, most: int) -> list[Row]:
        """The first rows, fetching only the pages that they are on."""
        return [*islice(self._fetch(), most)]

    def to_pandas(self) -> Any:
        """All rows as a pandas.DataFrame, which has its columns even if empty.

        Times are timestamps, and unknown numbers NaN.

        Raises:
            QueryError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise QueryError("pandas is not installed here: pip install pandas") from error
        rows = cast("list[dict[str, Any]]", self.all())
        frame = pandas.DataFrame(rows, columns=[*self.columns])
        for name in self._numbers:
            frame[name] = pandas.to_numeric(frame[name])
        for name in self.columns:
            if name == "at" or name.endswith("_at"):
                frame[name] = pandas.to_datetime(frame[name], utc=True, format="ISO8601")
        return frame
