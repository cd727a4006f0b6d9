"""What rules look at: one window's figures, or who of a job is silent now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from app.alerts.readings.accused import Accused
from app.alerts.readings.culprits import Finding, Worker
from app.trace.window import Floats, WindowState


@dataclass(frozen=True)
class WindowFacts:
    """One revision of a window: `result` is section 7's object of the model, with its findings.

    `verdict` is None where the window has no figures. `hosts` are the run's, as far as known.
    `earlier_step_s` [n] are recorded step times in seconds of the run's windows before it, the
    oldest first, of a long run not all of them.
    """

    window_id: str
    state: WindowState
    verdict: str | None
    result: Mapping[str, Any]
    num_gpus: int
    hosts: Mapping[Worker, str] = field(default_factory=dict)
    earlier_step_s: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and first step, by which windows of a job are in order."""
        return place_of(self.window_id)

    @property
    def recorded_s(self) -> Sequence[float]:
        """Recorded seconds of each of its steps that has figures."""
        recorded: Sequence[float] = self.result["step_time_s"]["recorded"]
        return recorded

    @property
    def took_s(self) -> float:
        """All of these steps together: the window's part of the event time."""
        return float(sum(self.recorded_s))

    @property
    def findings(self) -> Sequence[Finding] | None:
        """Causes, most costly first; None where nobody could look for them."""
        findings: Sequence[Finding] | None = self.result["findings"]
        return findings

    @cached_property
    def accused(self) -> Accused:
        """Whom these causes name."""
        return Accused(self.findings or (), self.hosts)


def place_of(window_id: str) -> tuple[int, int]:
    """Epoch and first step of a window's id."""
    epoch, _, first_step = window_id.partition("-")
    return int(epoch), int(first_step)


@dataclass(frozen=True, slots=True)
class SilenceFacts:
    """Who sends nothing, by the consumer's clock; `names` are workers in words, the first few.

    Both moments are Unix times, None while nobody is silent. Of a run that `is_starting` nothing
    has come so far, and that is nothing odd yet; of one that `is_only_scored` nothing need come, as
    another tool's scores do; of one that `has_unheard` nothing of some workers has.
    """

    is_starting: bool = False
    stalled_since_s: float | None = None
    silent_since_s: float | None = None
    names: Sequence[str] = ()
    num_silent: int = 0
    num_workers: int = 0
    num_gpus: int = 0
    last_step: int | None = None
    has_unheard: bool = False
    is_only_scored: bool = False

    @property
    def is_without_data(self) -> bool:
        """Whether no window can have figures: somebody is silent, everybody, or nobody began."""
        is_silent = self.stalled_since_s is not None or self.silent_since_s is not None
        return is_silent or self.is_starting
