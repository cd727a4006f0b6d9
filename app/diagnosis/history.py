"""What is remembered of a job's earlier steps, so that a change can be seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.onset import changes
from app.trace.window import Floats, Ints

# So many steps tell what is usual; of the largest jobs fewer, as a row of the store holds them.
# Where there are more, the older ones are thinned out, but for those at the latest changes: what
# changed is seen for as long as it lasts, and its step is known for as long.
MAX_STEPS = 256
MAX_VALUES = 1 << 19  # of a signal
MIN_STEPS = 32
MAX_CHANGES = 3
AT_CHANGES = 4  # on either side


@dataclass(frozen=True)
class History:
    """Signals of the closed windows before this one, of one epoch.

    Shapes: `steps` [n] ascending; `step_s` [n] recorded step times in seconds; `signals` {name:
    [n, dp, pp]}, the names and meanings in app/diagnosis/signals.py; NaN where not known.
    """

    steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    step_s: Floats = field(default_factory=lambda: np.empty(0))
    signals: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self.steps.size)

    def before(self, step: int) -> "History":
        """Only what was before this step."""
        return self._of(slice(int(np.searchsorted(self.steps, step))))

    def with_steps(self, newer: "History") -> "History":
        """Both, where a step that both have is the newer's; a job of other sizes begins anew."""
        if not newer.num_steps:
            return self
        if not self.num_steps or _workers(self) != _workers(newer):
            return newer
        old = self._of(~np.isin(self.steps, newer.steps))
        order = np.argsort(np.concatenate([old.steps, newer.steps]), kind="stable")
        names = sorted({*old.signals, *newer.signals})
        return History(
            np.concatenate([old.steps, newer.steps])[order],
            np.concatenate([old.step_s, newer.step_s])[order],
            {name: np.concatenate([_signal(old, name), _signal(newer, name)])[order]
             for name in names},
        )  # fmt: skip

    def extended(self, newer: "History") -> "History":
        """What is remembered from now on, just as it is when it was stored meanwhile."""
        return self.with_steps(newer)._trimmed()._rounded()

    def _rounded(self) -> "History":
        signals = {name: _stored(values) for name, values in self.signals.items()}
        return History(self.steps, _stored(self.step_s), signals)

    def _trimmed(self) -> "History":
        num_workers = int(np.prod(_workers(self) or (1,)))
        most = max(MIN_STEPS, min(MAX_STEPS, MAX_VALUES // num_workers))
        return self if self.num_steps <= most else self._of(_worth_keeping(self, most))

    def _of(self, chosen: slice | Ints | NDArray[np.bool_]) -> "History":
        signals = {name: values[chosen] for name, values in self.signals.items()}
        return History(self.steps[chosen], self.step_s[chosen], signals)


def _workers(history: History) -> tuple[int, ...] | None:
    """The job's sizes, dp and pp; None where no signal says them."""
    for values in history.signals.values():
        return values.shape[1:]
    return None


def _worth_keeping(history: History, most: int) -> Ints:
    """Positions of the newest half, and of older ones the fewer the older they are."""
    size = history.num_steps
    kept = np.arange(size)
    is_needed = kept >= size - most // 2
    for change in changes(history.step_s)[-MAX_CHANGES:]:
        is_needed[max(0, change.position - AT_CHANGES) : change.position + AT_CHANGES] = True
    while kept.size > most:
        steps = history.steps[kept]
        # How far apart its neighbours are, by its age: it is missed least where that is least.
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
