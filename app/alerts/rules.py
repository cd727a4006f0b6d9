"""The slowdown rule: fires after several slow windows in a row, resolves at a good one."""

from dataclasses import dataclass, replace

from app.alerts.alert import AlertState, Transition
from app.errors import StartUpFailed
from app.trace.window import WindowState


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds on the slowdown S, and how many closed windows in a row it takes.

    The distance between the two keeps a value that wavers from ringing twice.
    """

    threshold: float = 1.1
    clear: float = 1.05
    num_windows: int = 3
    name: str = "slowdown"

    def __post_init__(self) -> None:
        if not 1.0 < self.clear <= self.threshold:
            raise StartUpFailed(
                f"alerts clear below {self.clear} and fire at {self.threshold}: "
                "want 1 < clear <= threshold"
            )
        if self.num_windows < 1:
            raise StartUpFailed("alerts need at least 1 window to fire")


def decide(
    state: AlertState,
    rule: Rule,
    *,
    slowdown: float | None,
    window_id: str,
    window_state: WindowState,
    verdict: str | None,
) -> tuple[AlertState, Transition | None]:
    """The next state, and the transition if this window brings one.

    Windows that are open, incomplete, superseded or of low fidelity hold everything as it is, and
    so does one that was counted before: the same window may be handed in again after a crash.
    """
    if slowdown is None or window_state != "complete" or verdict != "ok":
        return state, None
    if state.window_id is not None and _place(window_id) <= _place(state.window_id):
        return state, None
    seen = _seen(state, slowdown, window_id)
    if slowdown >= rule.threshold:
        return _over(seen, rule, slowdown, window_id)
    if state.is_firing and slowdown >= rule.clear:
        return replace(seen, num_over=0), None
    if state.is_firing:
        return _resolved(seen, rule, slowdown, window_id)
    return _at_rest(seen), None


def job_ended(state: AlertState, rule: Rule) -> tuple[AlertState, Transition | None]:
    """The state after the job's end; an alert that fires resolves by it."""
    if not state.is_firing or state.window_id is None or state.slowdown is None:
        return _at_rest(state), None
    resolved, transition = _resolved(state, rule, state.slowdown, state.window_id)
    return resolved, replace(transition, job_ended=True)


def _place(window_id: str) -> tuple[int, int]:
    epoch, first_step = window_id.split("-")
    return int(epoch), int(first_step)


def _seen(state: AlertState, slowdown: float, window_id: str) -> AlertState:
    epoch, _ = _place(window_id)
    if epoch != state.epoch:
        # Steps of another run: windows before and after a restart are not in a row.
        since_step = state.since_step if state.is_firing else None
        state = replace(state, epoch=epoch, num_over=0, since_step=since_step)
    return replace(state, slowdown=slowdown, window_id=window_id)


def _over(
    seen: AlertState, rule: Rule, slowdown: float, window_id: str
) -> tuple[AlertState, Transition | None]:
    _, first_step = _place(window_id)
    since_step = first_step if seen.since_step is None else seen.since_step
    state = replace(seen, num_over=seen.num_over + 1, since_step=since_step)
    if state.is_firing or state.num_over < rule.num_windows:
        return state, None
    transition = Transition(
        kind="firing",
        window_id=window_id,
        slowdown=slowdown,
        threshold=rule.threshold,
        since_step=since_step,
        num_windows=state.num_over,
    )
    return replace(state, is_firing=True), transition


def _resolved(
    seen: AlertState, rule: Rule, slowdown: float, window_id: str
) -> tuple[AlertState, Transition]:
    transition = Transition(
        kind="resolved",
        window_id=window_id,
        slowdown=slowdown,
        threshold=rule.threshold,
        since_step=_place(window_id)[1],
        num_windows=0,
    )
    return _at_rest(seen), transition


def _at_rest(state: AlertState) -> AlertState:
    return replace(state, is_firing=False, num_over=0, since_step=None)
