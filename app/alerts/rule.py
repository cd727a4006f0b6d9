"""What an alert rule says: on which figure, from where on, for how long, and how bad that is."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal, get_args

from msgspec import Struct, field

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
    """The rule that notifies of what a fix of this job has achieved; None: there is none."""
    return next((rule for rule in rules if rule.on == "fix-outcome" and rule.is_for(job)), None)
