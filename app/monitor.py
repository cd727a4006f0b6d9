"""One window in, everything it tells us out: how slow, and is it news? Nothing is read or saved."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog
from structlog.contextvars import bound_contextvars

from app.alerts.alert import AlertState, Transition
from app.alerts.rules import Rule, decide
from app.engine.report import Report, analyse
from app.engine.result import as_json, without_figures
from app.errors import InvalidTrace
from app.trace.window import SkippedStep, Window

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Observation:
    """What one revision of a window tells us; the consumer saves it and sends the alert.

    `report` is None where the window has no complete step or cannot be replayed; `result` is
    section 7's object either way, with the reason among its skipped steps.
    """

    report: Report | None
    result: dict[str, Any]
    alert_state: AlertState
    transition: Transition | None

    @property
    def verdict(self) -> Literal["ok", "low"] | None:
        """Whether the figures can be trusted; None where there are none."""
        if self.report is None:
            return None
        return "low" if self.report.is_low_fidelity else "ok"


def observe(window: Window, alert_state: AlertState, rule: Rule) -> Observation:
    """How slow, and is it news? Only closed windows count for alerts."""
    with bound_contextvars(window=window.id, epoch=window.epoch, revision=window.revision):
        report, result = _figures(window)
    seen = Observation(report, result, alert_state, None)
    if window.state == "open":
        return seen
    state, transition = decide(
        alert_state,
        rule,
        slowdown=None if report is None else report.slowdown,
        window_id=window.id,
        window_state=window.state,
        verdict=seen.verdict,
    )
    return replace(seen, alert_state=state, transition=transition)


def _figures(window: Window) -> tuple[Report | None, dict[str, Any]]:
    if not window.steps:
        return None, without_figures(window)
    try:
        report = analyse(window)
    except InvalidTrace as error:
        log.warning("window not analysed", name=window.job.name, reason=str(error))
        return None, without_figures(_skipped(window, str(error)))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # A fault of ours. The operations are kept and the job goes on; the log has the traceback.
        log.exception("window not analysed", name=window.job.name)
        reason = "Paceline failed to analyse the window: its log says how"
        return None, without_figures(_skipped(window, reason))
    return report, as_json(report)


def _skipped(window: Window, reason: str) -> Window:
    """The window with none of its steps analysed, for one and the same reason."""
    skipped = [*window.skipped, *(SkippedStep(step, reason) for step in window.steps)]
    in_order = tuple(sorted(skipped, key=lambda each: each.step))
    return replace(window, steps=(), skipped=in_order)
