"""Which causes are new, which are gone, and which were found on both sides."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.charts.compare_side import Side

Change = Literal["new", "gone", "same"]
Finding = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """A cause on one side or both; `before` is a's finding of the same where both have it.

    A cost is the share of its side's GPU time, where known.
    """

    change: Change
    finding: Finding
    before: Finding | None = None

    @property
    def cost(self) -> float:
        """What it costs, or cost while it was there; 0 where unknown."""
        return float(self.finding.get("cost") or 0.0)


def compared(a: Side, b: Side) -> list[Compared]:
    """Every cause once: new ones, then those on both sides, then gone ones; most costly first."""
    left = list(a.findings)
    found = []
    for finding in b.findings:
        before = next((each for each in left if _is_same(each, finding)), None)
        if before is not None:
            left.remove(before)
        found.append(Compared("new" if before is None else "same", finding, before))
    found += [Compared("gone", each) for each in left]
    order = ("new", "same", "gone")
    return sorted(found, key=lambda each: (order.index(each.change), -each.cost))


def _is_same(before: Finding, after: Finding) -> bool:
    """Whether both blame the same cause on the same: a worker that moved took its host along."""
    if before["cause"] != after["cause"]:
        return False
    was, now = _blamed(before), _blamed(after)
    return bool(was & now) or not (was and now)


def _blamed(finding: Finding) -> set[tuple[str, Any]]:
    """Hosts, and places in the job, that a finding names."""
    named: set[tuple[str, Any]] = set()
    for culprit in finding["culprits"]:
        place = (culprit.get("dp_rank"), culprit.get("stage"))
        if place != (None, None):
            named.add(("place", place))
        if culprit.get("host"):
            named.add(("host", culprit["host"]))
    return named
