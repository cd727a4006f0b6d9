"""Base of everything that windows have a figure of; one file for each, listed in `registry`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from app.alerts.facts import WindowFacts
from app.alerts.readings.culprits import Finding
from app.alerts.rule import On, Rule

Unit = Literal["ratio", "share", "GPU-hours an hour", "seconds"]


class Figure(ABC):
    """One figure of a window, or one for each of several subjects.

    `rest` is the figure of a job with which all is well, and `verdicts` are those of windows that
    count. Where `has_subjects`, a rule's `of` chooses among them.
    """

    on: ClassVar[On]
    unit: ClassVar[Unit]
    rest: ClassVar[float] = 0.0
    usual_above: ClassVar[float | None] = None
    usual_clear: ClassVar[float | None] = None  # else in the middle between `rest` and above
    is_exact: ClassVar[bool] = False  # clears just where it raises, unless a rule says otherwise
    is_found: ClassVar[bool] = False  # something is there, whatever the figure says of its size
    has_subjects: ClassVar[bool] = False
    is_of_run: ClassVar[bool] = False  # held against the same run before: another has none yet
    verdicts: ClassVar[frozenset[str]] = frozenset({"ok"})

    @abstractmethod
    def values(self, rule: Rule, facts: WindowFacts) -> Mapping[str, float] | None:
        """Figures by subject, "" being the whole job; None where the window does not tell.

        A subject that is left out has nothing wrong with it.
        """

    def is_sure(self, rule: Rule, facts: WindowFacts, subject: str) -> bool:
        """Whether the figure may raise an alert; one that may not still holds one up."""
        return True

    def blame(self, facts: WindowFacts, subject: str) -> Finding | None:
        """The finding that explains it, as far as there is one."""
        return facts.findings[0] if facts.findings else None

    def lost_share(self, facts: WindowFacts, value: float) -> float | None:
        """Share of the job's GPU time that is lost by it; None where that is no loss of time."""
        wasted: float | None = facts.result["gpu_time_wasted"]
        return wasted

    def labels(self, facts: WindowFacts, subject: str) -> Mapping[str, str]:
        """Labels that the subject has by itself."""
        return {}


def share_of_ratio(ratio: float) -> float:
    """Share of the time that would be saved at a ratio of 1."""
    return max(0.0, 1.0 - 1.0 / ratio)
