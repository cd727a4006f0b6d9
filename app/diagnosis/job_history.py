"""Signals of a job's earlier steps, by which changes are detected.

`History` has those of closed windows, `ExtendedHistory` adds the window to diagnose. `pack` and
`unpack` are its stored form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.diagnosis.statistics.change_points import latest_onset, level_changes
from app.diagnosis.statistics.episodes import episodes_of
from app.diagnosis.statistics.persistence import Onset, period, persistence_of
from app.engine.medians import medians_of_known
from app.trace.window import Floats, Ints

# Steps to keep, fewer for the largest jobs, as one row of the store holds them. Older steps are
# thinned out, except around the latest changes, so that their onset stays known.
MAX_STEPS = 256
MAX_VALUES = 1 << 19  # of a signal
MIN_STEPS = 32
MAX_CHANGES = 3
STEPS_AT_CHANGES = 4  # on either side
# Fewer steps do not show what is usual: the first ones are slow in most jobs.
_MIN_USUAL_STEPS = 16

AnswerT = TypeVar("AnswerT")
# When a cause was suspected in earlier windows: its onset, None where that is before the history,
# and its newest step.
Suspected = tuple[int | None, int]


@dataclass(frozen=True)
class History:
    """Signals of the closed windows before this one, of one epoch.

    Shapes: `steps` [n] ascending; `step_s` [n] recorded step times in seconds; `signals` {name:
    [n, dp, pp]}, the names and meanings in app/diagnosis/features.py; NaN where not known.
    `suspected` are the causes that these windows showed.
    `started_s` [n] are the Unix times at which the steps started, NaN where not known; None where
    none is.
    """

    steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    step_s: Floats = field(default_factory=lambda: np.empty(0))
    signals: Mapping[str, Floats] = field(default_factory=dict)
    suspected: Mapping[str, Suspected] = field(default_factory=dict, kw_only=True)
    started_s: Floats | None = field(default=None, kw_only=True)

    def clock(self) -> dict[int, tuple[float, float]]:
        """By step: the Unix time at which it started, and the seconds that it took."""
        times = zip(self.steps.tolist(), _started(self).tolist(), self.step_s.tolist(), strict=True)
        return {step: (at_s, took_s) for step, at_s, took_s in times if at_s == at_s}

    @cached_property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self.steps.size)

    def usual_step_s(self, newer_s: Floats) -> float | None:
        """Seconds that a step took before it changed to what it takes now.

        Args:
            newer_s: [n] seconds of the steps that follow, which may have changed, too.

        Returns:
            The median of all steps where nothing has changed; None after few steps.
        """
        if self.num_steps < _MIN_USUAL_STEPS or not newer_s.size:
            return None
        onset = latest_onset(np.concatenate([self.step_s, newer_s]))
        return float(np.median(self.step_s)) if onset is None else onset.before

    def before(self, step: int) -> "History":
        """The history before this step."""
        earlier = self._of(slice(int(np.searchsorted(self.steps, step))))
        if not self.suspected:
            return earlier
        known = {
            cause: (onset, min(newest, step - 1))
            for cause, (onset, newest) in self.suspected.items()
            if onset is None or onset < step
        }
        return replace(earlier, suspected=known)

    def with_steps(self, newer: "History") -> "History":
        """Both; the newer one wins where steps repeat or the job's sizes differ."""
        if not newer.num_steps:
            return self
        if not self.num_steps or _workers(self) != _workers(newer):
            return newer
        names = sorted({*self.signals, *newer.signals})
        order: slice | Ints = slice(None)
        old = self
        if newer.steps[0] <= self.steps[-1]:
            old = self._of(~np.isin(self.steps, newer.steps))
            order = np.argsort(np.concatenate([old.steps, newer.steps]), kind="stable")
        return History(
            np.concatenate([old.steps, newer.steps])[order],
            np.concatenate([old.step_s, newer.step_s])[order],
            {name: np.concatenate([_signal(old, name), _signal(newer, name)])[order]
             for name in names},
            suspected={**self.suspected, **newer.suspected},
            started_s=np.concatenate([_started(old), _started(newer)])[order],
        )  # fmt: skip

    def extended(self, newer: "History") -> "History":
        """Both, trimmed and rounded as if stored and read back."""
        return self.with_steps(newer)._trimmed()._rounded()

    def _rounded(self) -> "History":
        signals = {name: _stored(values) for name, values in self.signals.items()}
        return replace(self, step_s=_stored(self.step_s), signals=signals)

    def _trimmed(self) -> "History":
        num_workers = int(np.prod(_workers(self) or (1,)))
        most = max(MIN_STEPS, min(MAX_STEPS, MAX_VALUES // num_workers))
        return self if self.num_steps <= most else self._of(_worth_keeping(self, most))

    def _of(self, chosen: slice | Ints | NDArray[np.bool_]) -> "History":
        signals = {name: values[chosen] for name, values in self.signals.items()}
        return History(
            self.steps[chosen],
            self.step_s[chosen],
            signals,
            suspected=self.suspected,
            started_s=None if self.started_s is None else self.started_s[chosen],
        )


def _started(history: History) -> Floats:
    if history.started_s is None:
        return np.full(history.steps.size, np.nan)
    return history.started_s


def _workers(history: History) -> tuple[int, ...] | None:
    """(dp, pp) of the job; None without signals."""
    for values in history.signals.values():
        return values.shape[1:]
    return None


def _worth_keeping(history: History, most: int) -> Ints:
    """Positions of the steps to keep: the newest half, and fewer of older steps."""
    size = history.num_steps
    kept = np.arange(size)
    is_needed = kept >= size - most // 2
    for change in level_changes(history.step_s)[-MAX_CHANGES:]:
        is_needed[
            max(0, change.position - STEPS_AT_CHANGES) : change.position + STEPS_AT_CHANGES
        ] = True
    while kept.size > most:
        steps = history.steps[kept]
        # Drop the step whose neighbours are closest together, relative to its age.
        gap = (steps[2:] - steps[:-2]) / (steps[-1] - steps[1:-1])
        gap[is_needed[kept[1:-1]]] = np.inf
        kept = np.delete(kept, 1 + int(gap.argmin()))
    return kept


def _stored(seconds: Floats) -> Floats:
    return seconds.astype(np.float32).astype(np.float64)


def _signal(history: History, name: str) -> Floats:
    if name in history.signals:
        return history.signals[name]
    return np.full((history.num_steps, *(_workers(history) or ())), np.nan)


CODEC_FORMAT = 1


def pack(history: History) -> bytes:
    """The history as bytes, its seconds rounded to seven digits."""
    return msgspec.msgpack.encode(
        {
            "format": CODEC_FORMAT,
            "steps": history.steps.astype("<i8").tobytes(),
            "step_s": _packed(history.step_s),
            "signals": {name: _packed(values) for name, values in history.signals.items()},
            "suspected": history.suspected,
            # Unix times in seconds need all of their digits.
            "started_s": _started(history).astype("<f8").tobytes(),
        }
    )


def unpack(blob: bytes) -> History:
    """The history in bytes of `pack`.

    Raises:
        ValueError: other bytes, or those of a newer version.
    """
    try:
        message = msgspec.msgpack.decode(blob)
        if message["format"] != CODEC_FORMAT:
            raise ValueError(
                f"history of format {message['format']}: this version reads {CODEC_FORMAT}"
            )
        steps = np.frombuffer(message["steps"], "<i8").astype(np.int64)
        signals = {name: _unpacked(packed) for name, packed in message["signals"].items()}
        suspected = {cause: (since[0], since[1]) for cause, since in message["suspected"].items()}
        started_s = np.frombuffer(message["started_s"], "<f8").astype(np.float64)
        step_s = _unpacked(message["step_s"])
        return History(steps, step_s, signals, suspected=suspected, started_s=started_s)
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a packed history") from error


def _packed(values: Floats) -> dict[str, Any]:
    return {"shape": values.shape, "bytes": values.astype("<f4").tobytes()}


def _unpacked(packed: dict[str, Any]) -> Floats:
    return np.frombuffer(packed["bytes"], "<f4").astype(np.float64).reshape(packed["shape"])


@dataclass(frozen=True)
class ExtendedHistory(History):
    """Steps before the window, `num_before` of them, and those in it."""

    num_before: int = 0

    def of_window(self, badness: Floats) -> Floats:
        """[n] of a figure [steps of the window]; NaN in the steps before."""
        return np.concatenate([np.full(self.num_before, np.nan), badness])

    def derived(self, compute: Callable[["ExtendedHistory"], AnswerT]) -> AnswerT:
        """The result of `compute(self)`, computed once."""
        if compute not in self._derived:
            self._derived[compute] = compute(self)
        result: AnswerT = self._derived[compute]
        return result

    @cached_property
    def _derived(self) -> dict[Any, Any]:
        return {}


def extended_history(history: History, window: History) -> ExtendedHistory:
    """The history up to the window, and the window."""
    before = history.before(int(window.steps[0])) if window.num_steps else history
    both = before.with_steps(window)
    num_before = both.num_steps - window.num_steps
    return ExtendedHistory(
        both.steps, both.step_s, both.signals, num_before, suspected=before.suspected
    )


def onset_in_history(history: ExtendedHistory, badness: Floats) -> Onset:
    """Onset, end and persistence of `badness` [n], 1.0 = not bad, NaN = unknown."""
    slowdown = episodes_of(badness)
    if slowdown is None:
        return Onset(None, None)
    has_ended = slowdown.is_over and slowdown.end > history.num_before
    at = slowdown.first + np.flatnonzero(np.isfinite(badness[slowdown.first :]))
    every_steps = period(history.steps[at], np.maximum(badness[at] - 1, 0.0))
    lasts = persistence_of(slowdown, badness, history.num_before)
    return Onset(
        int(history.steps[slowdown.first]) if slowdown.begins else None,
        "transient" if lasts == "chronic" and every_steps is not None else lasts,
        int(history.steps[slowdown.end - 1]) if has_ended else None,
        every_steps,
    )


# A cause that was not suspected for so many windows, or for as long as it had been, began anew.
MAX_WINDOWS_BETWEEN = 2


def onset_by_earlier_windows(history: ExtendedHistory, cause: str, first_step: int) -> int | None:
    """Onset of a cause that the window shows from `first_step` on, by what earlier ones showed.

    None where it began before the history, or there are no earlier windows.
    """
    if not history.num_before:
        return None
    if cause not in history.suspected:
        return first_step
    onset, newest = history.suspected[cause]
    oldest = int(history.steps[0]) if onset is None else onset
    between = first_step - newest
    num_steps = history.num_steps - history.num_before
    is_same = between <= max(MAX_WINDOWS_BETWEEN * num_steps, newest - oldest)
    return onset if is_same else first_step


def median_over_workers(signal: Floats) -> Floats:
    """[n], the median over workers of a signal [n, dp, pp]."""
    return medians_of_known(signal.reshape(signal.shape[0], -1))
