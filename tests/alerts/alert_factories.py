"""Rules, alerts and looks at windows, of which only what a test names matters."""

from collections.abc import Sequence
from typing import Any

from app.alerts.alert import AlertState, Detail, fingerprint
from app.alerts.facts import WindowFacts
from app.alerts.rule import Rule
from app.alerts.rules.evaluation import JobAlerts
from app.alerts.rules.state_machine import ObservedWindow, SubjectReading
from app.result.finding import Finding
from app.result.window_result import WindowResult
from tests import results

JOB = "default/llm-70b"
WINDOW_S = 8.0
NOW_S = 1_700_000_000.0


def rule(**given: Any) -> Rule:
    """Fires at 1.10 after three windows and 20 s, clears below 1.05 for 16 s."""
    known: dict[str, Any] = {
        "name": "slow",
        "on": "slowdown",
        "above": 1.1,
        "clear": 1.05,
        "for_windows": 3,
        "for_s": 20.0,
        "keep_firing_s": 16.0,
    }
    return Rule(**known | given)


AT_ONCE: dict[str, Any] = {"for_windows": 1, "for_s": 0.0, "keep_firing_s": 0.0}
SLOW = rule(**AT_ONCE)


def on(kind: Any, above: float | None = 0.1, **given: Any) -> Rule:
    """Fires at the first window, under the name of what it is on."""
    return Rule(kind, kind, above=above, **AT_ONCE | given)


def job_alerts(*rules: Rule, **given: Any) -> Any:
    """The alerts of a job with these rules; untyped, as a test knows which states are None."""
    return JobAlerts(JOB, rules=rules, **given)


def only(changes: Sequence[Any]) -> Any:
    """The one change."""
    (change,) = changes
    return change


def fresh(of: Rule, subject: str = "") -> AlertState:
    """An alert that is about to begin."""
    return AlertState(
        fingerprint=fingerprint(JOB, of.name, subject),
        job_id=JOB,
        rule=of.name,
        subject=subject,
        phase="pending",
        severity=of.severity,
        began_at_s=NOW_S,
        threshold=of.above,
    )


def look(value: float | None, **given: Any) -> SubjectReading:
    """A slowdown."""
    return SubjectReading(value, detail=Detail(on="slowdown", value=value, slowdown=value), **given)


def moment(number: int, epoch: int = 1, took_s: float = WINDOW_S) -> ObservedWindow:
    """The window of this number, eight steps each, as it closes."""
    first_step = 8 * number
    now_s = NOW_S + number * WINDOW_S
    return ObservedWindow(f"{epoch}-{first_step}", epoch, first_step, took_s, now_s)


def result(slowdown: float = 1.0, **given: Any) -> WindowResult:
    """As much of a result as rules look at, of two workers and eight steps of 1 s."""
    known: dict[str, Any] = {
        "slowdown": slowdown,
        "gpu_time_wasted": 1 - 1 / slowdown,
        "step_time_s": {"recorded": [1.0] * 8, "simulated": [1.0] * 8, "ideal": [1.0] * 8},
        "fidelity": {"discrepancy": 0.01, "verdict": "ok", "step_discrepancy": [0.01] * 8},
        "optype_slowdown": {"forward-compute": slowdown},
        "worker_slowdown": [[slowdown], [1.0]],
        "findings": [],
    }
    return results.window_result(**known | given)


def finding(cause: str = "slow-worker", cost: float | None = 0.3, **given: Any) -> Finding:
    """dp 0, stage 0 on host-1 is slow."""
    known: dict[str, Any] = {
        "score": 0.9,
        "confidence": 0.95,
        "culprits": [{"dp_rank": 0, "stage": 0, "host": "host-1"}],
        "onset_step": None,
        "sentence": "dp 0, stage 0 on host-1 is 1.6x slower than its peers, since step 12; "
        "it costs 30 % of the job's GPU time",
    }
    return results.finding(cause, **known | {"cost": cost} | given)


HOSTS = {(0, 0): "host-1", (1, 0): "host-2"}


def facts(number: int, slowdown: float = 1.0, epoch: int = 1, **given: Any) -> WindowFacts:
    """The window of this number; `given` are parts of the facts or of their result."""
    of_facts: dict[str, Any] = {
        "state": "complete",
        "verdict": "ok",
        "num_gpus": 16,
        "hosts": HOSTS,
    }
    own = {name: given.pop(name) for name in (*of_facts, "usual_step_s") if name in given}
    return WindowFacts(
        window_id=f"{epoch}-{8 * number}", result=result(slowdown, **given), **of_facts | own
    )


def kinds(changes: Sequence[Any]) -> list[str]:
    """Kinds of the transitions in these changes."""
    return [event.kind for change in changes for event in change.events]
