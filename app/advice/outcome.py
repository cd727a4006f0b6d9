"""Was a prediction right? Follows one predicted fix through the windows after it.

open: not noticed so far. applied: noticed, and measured over the next windows. Final are measured,
gone (the cause went away by itself), not-comparable (the job became another one) and expired.
Achieved speed-up is T at the prediction / mean T after the fix: both simulated, as in the
prediction, so launch delays are in neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app import formatting
from app.advice.seen import comparable_step_s, seen_in
from app.advice.signs import FollowedWindow, Seen, Sign, sign_of
from app.result.window_result import TopFix

State = Literal["open", "applied", "measured", "gone", "not-comparable", "expired"]
LIVE: tuple[State, ...] = ("open", "applied")
# An outcome is final after so many complete windows with the fix, or at the end of the run.
NUM_MEASURED = 3
# A cause must be gone for so many complete windows in a row, after as many had it.
_NUM_GONE = 2
# Pauses come and go: planned only if unseen for so long, after windows in a row that all had them.
_NUM_GONE_PAUSES = 3
# T just before the fix may differ so much from T at the prediction before that is noted.
_MAX_DRIFT = 0.05


@dataclass(frozen=True, slots=True)
class SeenWindow:
    """The state of the fix in one complete window.

    `step_s` is its mean simulated step, of uneven sequences at the work of the prediction.
    """

    epoch: int
    first_step: int
    num_steps: int
    step_s: float
    seen: Seen
    causes: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and first step, by which windows are in order."""
        return self.epoch, self.first_step

    @property
    def window_id(self) -> str:
        """Id of the window in routes."""
        return f"{self.epoch}-{self.first_step}"


@dataclass(frozen=True, slots=True)
class Tracked:
    """A prediction for the window at `epoch` and `first_step`, and its outcome.

    `before_s` is T there, in seconds. `windows` are the last ones while it is open, then those with
    the fix; `num_there` windows had the cause, that of the prediction included. `achieved`
    is T before / T after, over the windows so far; None before the first.
    """

    fix: str
    sign: Sign
    epoch: int
    first_step: int
    before_s: float
    state: State = "open"
    windows: tuple[SeenWindow, ...] = ()
    num_there: int = 1
    applied_epoch: int | None = None
    applied_step: int | None = None
    achieved: float | None = None
    note: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether later windows may change it."""
        return self.state in LIVE

    @property
    def applied_at(self) -> tuple[int, int] | None:
        """Epoch and step since which the fix is there; None before it is noticed."""
        if self.applied_epoch is None or self.applied_step is None:
            return None
        return self.applied_epoch, self.applied_step


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted fix, to be followed: `step_s` and its range are mean steps with it, seconds."""

    title: str
    step_s: float
    step_range_s: tuple[float, float]
    gpu_hours_per_day: float
    tracked: Tracked

    @property
    def speed_up(self) -> float:
        """T / T_new."""
        return self.tracked.before_s / self.step_s

    @property
    def sentence(self) -> str:
        """The predicted speed-up and the achieved one so far."""
        return outcome_sentence(self.tracked, self.speed_up)


def prediction_of(fix: TopFix, window: FollowedWindow) -> Prediction | None:
    """A fix of this window, to be followed; None where nothing would show that it was applied."""
    sign = sign_of(fix, window)
    if sign is None:
        return None
    least_s, most_s = fix.step_range_s
    tracked = Tracked(fix.fix, sign, window.epoch, window.first_step, fix.step_s_before)
    return Prediction(fix.title, fix.step_s, (least_s, most_s), fix.gpu_hours_per_day, tracked)


def predicted_again(old: Tracked, new: Tracked) -> Tracked:
    """The newer prediction of the same open fix; the windows before had the cause, too."""
    return replace(new, num_there=max(old.num_there, new.num_there))


def advance(tracked: Tracked, window: FollowedWindow) -> Tracked:
    """After a complete window, or another revision of it: the same window counts once."""
    place = (window.epoch, window.first_step)
    if not tracked.is_live or place <= (tracked.epoch, tracked.first_step):
        return tracked
    step_s, state = comparable_step_s(tracked.sign, window), seen_in(tracked.sign, window)
    seen = SeenWindow(*place, len(window.result.steps), step_s, state, window.causes)
    others = [other for other in tracked.windows if other.place != place]
    is_new = len(others) == len(tracked.windows)
    if is_new and tracked.windows and place < tracked.windows[0].place:
        return tracked  # an older one, which is no longer followed
    in_order = tuple(sorted([*others, seen], key=lambda shown: shown.place))
    num_there = _num_there(tracked, seen) if is_new else tracked.num_there
    followed = replace(tracked, windows=in_order, num_there=num_there)
    return _measured(followed) if followed.state == "applied" else _noticed(followed)


def _num_there(tracked: Tracked, seen: SeenWindow) -> int:
    """Windows that had the cause, with this new one; of pauses those in a row."""
    if seen.seen != "there":
        return tracked.num_there
    is_in_row = not tracked.windows or tracked.windows[-1].seen == "there"
    return tracked.num_there + 1 if is_in_row or tracked.sign.kind != "pauses" else 1


def advance_all(tracked: Sequence[Tracked], window: FollowedWindow) -> list[Tracked]:
    """All predictions of one job after a complete window.

    Fixes that are applied at once cannot be told apart: both are measured, and say so. Predictions
    from before another fix was applied are out of date, and expire.
    """
    after = [advance(prediction, window) for prediction in tracked]
    for before, now in zip(tracked, after, strict=True):
        if before.applied_at is None and now.applied_at is not None:
            after = [_beside(prediction, now) for prediction in after]
    return after


def finish_run(tracked: Tracked, epoch: int) -> Tracked:
    """After the end of a run: the figures measured in it, in however few windows, are final."""
    is_measured = tracked.state == "applied" and tracked.achieved is not None
    if not is_measured or tracked.applied_epoch != epoch:
        return tracked
    return _with_new_causes(replace(tracked, state="measured"))


def _beside(tracked: Tracked, other: Tracked) -> Tracked:
    """A prediction, after another one of the job was noticed."""
    if tracked.fix == other.fix or not tracked.is_live:
        return tracked
    if tracked.applied_at is None:
        note = f"{other.fix} was applied since: predict it again"
        return replace(tracked, state="expired", note=note)
    if tracked.applied_at == other.applied_at:
        return _noted(tracked, f"applied together with {other.fix}: the gain is that of both")
    # Windows from here on have both fixes.
    limit = other.applied_at or (0, 0)
    own = tuple(window for window in tracked.windows if window.place < limit)
    note = f"{other.fix} was applied soon after"
    if not own:
        return replace(tracked, state="not-comparable", achieved=None, windows=(), note=note)
    return replace(_with_achieved(replace(tracked, windows=own)), state="measured")


_NOT_COMPARABLE: dict[Seen, str] = {
    "other-shape": "the job has other sizes or another number of micro-batches now",
    "other-work": "micro-batches compute for another time than the fix explains: is it other work?",
}


def _noticed(tracked: Tracked) -> Tracked:
    """An open prediction, after its last windows."""
    last = tracked.windows[-1]
    if last.seen in _NOT_COMPARABLE:
        note = _NOT_COMPARABLE[last.seen]
        return replace(tracked, state="not-comparable", windows=(), note=note)
    if last.seen == "applied":
        return _applied(tracked, last)
    num_gone = _NUM_GONE_PAUSES if tracked.sign.kind == "pauses" else _NUM_GONE
    recent = tracked.windows[-num_gone:]
    seen = {window.seen for window in recent}
    if len(recent) == num_gone and seen <= {"gone", "recovered"}:
        if seen == {"gone"} and tracked.num_there >= _NUM_GONE:
            return _applied(tracked, recent[0])
        is_link = tracked.sign.kind == "link"
        note = "no longer found: repaired, or quiet" if is_link else "the cause went away by itself"
        return replace(tracked, state="gone", windows=(), note=note)
    return replace(tracked, windows=recent)


def _applied(tracked: Tracked, since: SeenWindow) -> Tracked:
    before_s = [window.step_s for window in tracked.windows if window.place < since.place]
    with_fix = tuple(window for window in tracked.windows if window.place >= since.place)
    epoch, step = since.place
    now = replace(
        tracked, state="applied", windows=with_fix, applied_epoch=epoch, applied_step=step
    )
    if before_s and abs(before_s[-1] / tracked.before_s - 1) > _MAX_DRIFT:
        ratio = formatting.ratio(before_s[-1] / tracked.before_s)
        now = _noted(now, f"steps just before it took {ratio} as long as at the prediction")
    return _measured(now)


def _measured(tracked: Tracked) -> Tracked:
    """A prediction that is applied, with the speed-up achieved in its windows so far."""
    comparable = tuple(window for window in tracked.windows if window.seen not in _NOT_COMPARABLE)
    is_over = len(comparable) < len(tracked.windows) or len(comparable) >= NUM_MEASURED
    tracked = replace(tracked, windows=comparable[:NUM_MEASURED])
    if not comparable:
        return replace(tracked, state="not-comparable", note="the job changed at the same time")
    tracked = _with_achieved(tracked)
    return _with_new_causes(replace(tracked, state="measured")) if is_over else tracked


def _with_achieved(tracked: Tracked) -> Tracked:
    steps = sum(window.num_steps for window in tracked.windows)
    total_s = sum(window.num_steps * window.step_s for window in tracked.windows)
    return replace(tracked, achieved=tracked.before_s * steps / total_s)


def _with_new_causes(tracked: Tracked) -> Tracked:
    causes = {cause for window in tracked.windows for cause in window.causes}
    new = sorted(causes - set(tracked.sign.found))
    return _noted(tracked, f"found since: {', '.join(new)}") if new else tracked


def _noted(tracked: Tracked, note: str) -> Tracked:
    if tracked.note is not None and note in tracked.note:
        return tracked
    return replace(tracked, note=note if tracked.note is None else f"{tracked.note}; {note}")


_DONE = {
    "replace-worker": "worker replaced",
    "resplit-stages": "re-split",
    "other-schedule": "schedule changed",
    "planned-gc": "garbage collection planned",
    "balance-sequences": "sequences balanced",
    "pack-sequences": "documents packed",
    "repair-link": "link repaired",
}


def outcome_sentence(tracked: Tracked, predicted: float) -> str:
    """The predicted and the achieved speed-up: `re-split at step 4,120: predicted ...`.

    `predicted` is the speed-up T / T_new of the prediction.
    """
    ratio = f"predicted {formatting.ratio(predicted)}"
    done = _DONE.get(tracked.fix, f"{tracked.fix} applied")
    if tracked.applied_step is not None:
        at = f"{done} at step {formatting.count(tracked.applied_step)}: {ratio}"
        if tracked.achieved is None:
            return f"{at}, not measured"
        return f"{at}, achieved {formatting.ratio(tracked.achieved)}"
    if tracked.state == "open":
        return f"{tracked.fix}: {ratio}, not applied so far"
    return f"{tracked.fix}: {ratio}, not applied"
