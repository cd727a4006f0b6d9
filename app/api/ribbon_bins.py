"""A job's windows as a ribbon of bins: each of whole windows, of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.store.ribbon import Times
from app.store.windows import Verdict, WindowSummary

# One is three pixels wide on a desk, one on a phone.
MAX_BINS = 240


@dataclass(frozen=True, slots=True)
class Bin:
    """Successive windows; `slowdown` is that of all their steps together, None if unknown."""

    windows: tuple[WindowSummary, ...]
    slowdown: float | None

    @property
    def first(self) -> WindowSummary:
        """The oldest window."""
        return self.windows[0]

    @property
    def last(self) -> WindowSummary:
        """The newest window."""
        return self.windows[-1]

    @property
    def verdict(self) -> Verdict | None:
        """Low where any window is; None where none was measured."""
        known = {each.verdict for each in self.windows if each.slowdown is not None}
        return "low" if "low" in known else "ok" if known else None

    @property
    def num_steps(self) -> int:
        """Analysed steps."""
        return sum(each.num_steps for each in self.windows)

    @property
    def is_open(self) -> bool:
        """Whether steps are still added to it."""
        return self.last.state == "open"

    def has(self, epoch: int, step: int) -> bool:
        """Whether the step lies between its first and its last one."""
        of_run = self.first.epoch == epoch
        return of_run and self.first.first_step <= step <= self.last.last_step


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps of a run of which nothing is stored, between two bins."""

    after_bin: int
    num_steps: int


def bins(found: Sequence[WindowSummary], times: Mapping[str, Times]) -> list[Bin]:
    """At most 240 bins of the windows (ascending), the newest ones; broken at runs and at gaps."""
    stretches = _stretches(found, breaks_at_gaps=True)
    if len(stretches) > MAX_BINS // 2:
        stretches = _stretches(found, breaks_at_gaps=False)
    size = max(1, -(-len(found) // MAX_BINS))
    while size < len(found) and _count(stretches, size) > MAX_BINS:
        size += 1
    chunks = [each[at : at + size] for each in stretches for at in range(0, len(each), size)]
    return [Bin(tuple(chunk), _slowdown(chunk, times)) for chunk in chunks[-MAX_BINS:]]


def gaps(ribbon: Sequence[Bin]) -> list[Gap]:
    """Where steps of one run are missing between two bins, and how many."""
    found = []
    for at, (before, after) in enumerate(pairwise(ribbon)):
        num_steps = after.first.first_step - before.last.last_step - 1
        if before.last.epoch == after.first.epoch and num_steps > 0:
            found.append(Gap(at, num_steps))
    return found


def _stretches(
    found: Sequence[WindowSummary], *, breaks_at_gaps: bool
) -> list[list[WindowSummary]]:
    stretches: list[list[WindowSummary]] = []
    for window in found:
        before = stretches[-1][-1] if stretches else None
        if (
            before is None
            or before.epoch != window.epoch
            or (breaks_at_gaps and window.first_step > before.last_step + 1)
        ):
            stretches.append([])
        stretches[-1].append(window)
    return stretches


def _count(stretches: Sequence[Sequence[WindowSummary]], size: int) -> int:
    return sum(-(-len(each) // size) for each in stretches)


def _slowdown(chunk: Sequence[WindowSummary], times: Mapping[str, Times]) -> float | None:
    """S = T / T_ideal over all steps of the windows."""
    known = [each for each in chunk if each.slowdown is not None]
    if len(known) == 1:
        return known[0].slowdown
    sums = [times[each.window_id] for each in known if each.window_id in times]
    ideal_s = sum(each.ideal_s for each in sums)
    return sum(each.simulated_s for each in sums) / ideal_s if ideal_s else None
