"""Alert rules: on which figure, from which threshold on, for how long, with which severity.

`default_rules` are those of projects that have none of their own: right for most jobs as they are.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

On = Literal[
    "slowdown",
    "waste",
    "gpu-hours-lost",
    "cause",
    "worker",
    "host",
    "optype",
    "stalled",
    "silent-worker",
    "crashed",
    "low-fidelity",
    "clock-residual",
    "step-time",
    "fix-outcome",
]
ON: tuple[On, ...] = get_args(On)
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # ascending
# Longer addresses leave no room in a message, which has 20 kB.
MAX_RUNBOOK_CHARS = 1500


class Rule(Struct, frozen=True, omit_defaults=True):
    """One rule of a project, for the jobs whose ids match `jobs` (a pattern with * and ?).

    It begins to hold at a value of `above` or more and ceases to below `clear`, both in the unit
    of what it is `on` (docs/alerts.md); None where that has no value. `of` narrows it to causes,
    workers, hosts or operation types that match. It fires once it has held for `for_windows`
    complete windows in a row which took `for_s` seconds, and resolves once it has not held for
    `keep_firing_s`. While it fires, the job's alerts of rules named in `inhibits` are muted.
    """

    name: str
    on: On
    above: float | None = None
    clear: float | None = None
    of: str = "*"
    jobs: str = "*"
    for_windows: int = 3
    for_s: float = 30.0
    keep_firing_s: float = 60.0
    min_confidence: float = 0.6
    severity: Severity = "warning"
    labels: Mapping[str, str] = field(default_factory=dict)
    runbook_url: str | None = None
    inhibits: tuple[str, ...] = ()
    cordon: str | None = None

    def is_for(self, job: str) -> bool:
        """Whether it watches the job of this id, as its own project knows it."""
        return fnmatchcase(job, self.jobs)


def outcome_rule(rules: Iterable[Rule], job: str) -> Rule | None:
    """The rule that notifies of the measured effect of a fix of this job; None without such."""
    return next((rule for rule in rules if rule.on == "fix-outcome" and rule.is_for(job)), None)


# A cause has to be this sure before it wakes an on-call engineer by itself.
_MIN_CAUSE_CONFIDENCE = 0.8
# A tenth of the time lost, 1 / 0.9 = 1.11: also to what S does not show, since all ranks have it
# or so many that they are what is usual.
_MIN_STEP_TIME_RATIO = 1.1


def default_rules(
    *,
    slowdown: float = 1.1,
    clear_slowdown: float = 1.05,
    windows: int = 3,
    for_s: float = 30.0,
    keep_firing_s: float = 60.0,
) -> list[Rule]:
    """The rules of projects without rules of their own.

    The rules on causes and step time wait for one window more: a slowdown fires first and then
    inhibits both.
    """
    quietly = Rule(
        "stalled", "stalled", for_s=0.0, keep_firing_s=0.0, severity="critical",
        inhibits=("slowdown", "cause", "step-time", "silent-worker"),
    )  # fmt: skip
    first = Rule(
        "slowdown", "slowdown", slowdown, clear_slowdown, for_windows=windows, for_s=for_s,
        keep_firing_s=keep_firing_s, inhibits=("cause", "step-time"),
    )  # fmt: skip
    later = replace(first, above=None, clear=None, for_windows=windows + 1, inhibits=())
    return [
        first,
        replace(later, name="cause", on="cause", above=0.10, min_confidence=_MIN_CAUSE_CONFIDENCE),
        replace(later, name="step-time", on="step-time", above=_MIN_STEP_TIME_RATIO),
        quietly,
        # Inhibits nothing: without a few of its workers a job still has figures.
        replace(quietly, name="silent-worker", on="silent-worker", inhibits=()),
        replace(quietly, name="crashed", on="crashed", inhibits=()),
        Rule("fix-outcome", "fix-outcome", for_windows=1, for_s=0.0, keep_firing_s=0.0,
             severity="info"),
    ]  # fmt: skip
