"""What a result's arrivals come down to: whom the others waited for, and what nothing explains.

docs/arrivals.md defines the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app import words

Result = Mapping[str, Any]

# Above this share of the step, waiting is said and shown even where no cause is found.
MATERIAL_SHARE = 0.05
# Where operations cover less of the step, nothing can be ruled out.
MIN_COVERAGE = 0.6

_NEVER_UNKNOWN = ("waited_for_s", "waited_s", "late_share")
_COLUMNS = ("rank", "dp_rank", "stage", "host", "local_rank", "own_delay_s", *_NEVER_UNKNOWN)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank that recorded collectives; times in seconds a step, `share` is of the step.

    `is_culprit` says whether arrivals alone, or some finding, blames it.
    """

    rank: int
    dp_rank: int | None
    stage: int | None
    host: str | None
    local_rank: int | None
    waited_for_s: float
    waited_s: float
    share: float
    late_share: float
    own_delay_s: float | None
    is_culprit: bool

    @property
    def place(self) -> str:
        """Dp rank and stage, as far as known."""
        axes = (("dp", self.dp_rank), ("stage", self.stage))
        return ", ".join(f"{word} {number}" for word, number in axes if number is not None)

    @property
    def name(self) -> str:
        """The rank with its place, host and GPU."""
        host = words.contained(self.host) if self.host else ""
        return words.gpu(self.rank, self.place, host, self.local_rank)


def ranks(result: Result) -> list[RankWaits]:
    """Every rank of the arrivals, most waited for first; empty where there are none."""
    found = result.get("arrivals")
    if not found or not found.get("rank"):
        return []
    step_s = mean_step_s(result)
    culprits = {each["rank"] for each in found["culprits"]} | _named_ranks(result)
    workers = _named_workers(result)
    rows = []
    for row in zip(*(found[name] for name in _COLUMNS), strict=True):
        each: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
        # What a window of several does not know of a rank is not waiting.
        known: dict[str, Any] = {name: each[name] or 0.0 for name in _NEVER_UNKNOWN}
        share = known["waited_for_s"] / step_s
        is_culprit = each["rank"] in culprits or (each["dp_rank"], each["stage"]) in workers
        rows.append(RankWaits(**{**each, **known}, share=share, is_culprit=is_culprit))
    return sorted(rows, key=lambda each: (-each.waited_for_s, each.rank))


def _named_ranks(result: Result) -> set[int]:
    """GPUs that findings name; None is not among them."""
    return {each["rank"] for each in _culprits(result) if each.get("rank") is not None}


def _named_workers(result: Result) -> set[tuple[int, int]]:
    """Workers that findings name as a whole, by dp rank and stage."""
    return {
        (each["dp_rank"], each["stage"])
        for each in _culprits(result)
        if {"dp_rank", "stage"} <= each.keys() and each.get("local_rank") is None
    }


def _culprits(result: Result) -> list[Mapping[str, Any]]:
    findings = result.get("findings") or ()
    return [culprit for each in findings for culprit in each.get("culprits") or ()]


def mean_step_s(result: Result) -> float:
    """What a step takes, seconds."""
    recorded_s = result["step_time_s"]["recorded"]
    return float(sum(recorded_s) / len(recorded_s))


def carries_finding(result: Result) -> bool:
    """Whether some finding goes by arrivals."""
    return any(
        (each.get("evidence") or {}).get("arrivals") for each in result.get("findings") or ()
    )


def is_shown(result: Result) -> bool:
    """Whether waits are worth a picture: they carry a finding, or ranks wait much for one rank."""
    if not result.get("arrivals"):
        return False
    return carries_finding(result) or largest_share(result) > MATERIAL_SHARE


def largest_share(result: Result) -> float:
    """Share of the step that the others waited for the one rank waited for most."""
    found = result.get("arrivals")
    if not found:
        return 0.0
    return float(found["largest_share"])


def is_covered(result: Result) -> bool:
    """Whether operations cover enough of the step for a verdict; true where that is not known."""
    coverage = result.get("coverage")
    return coverage is None or coverage >= MIN_COVERAGE


def remarks(result: Result) -> list[str]:
    """Sentences about what no finding says: little coverage, unexplained waiting, a late rank.

    Where there is one, "nothing stands out" would be wrong.
    """
    said = [] if is_covered(result) else [_little_covered(result["coverage"])]
    return [*said, *_late_rank(result), *_unexplained(result)]


def cost(finding: Mapping[str, Any]) -> str | None:
    """What a finding costs of the GPU time: one share, or the range where two figures disagree."""
    between = finding.get("cost_range")
    if between:
        return f"{words.percent(between[0])} to {words.percent(between[1])}"
    return None if finding["cost"] is None else words.percent(finding["cost"])


def _little_covered(coverage: float) -> str:
    return (
        f"Recorded operations cover only {words.percent(coverage)} of the step: "
        "too little for a verdict."
    )


def _unexplained(result: Result) -> list[str]:
    share = result.get("unexplained_share")
    if share is None or share <= MATERIAL_SHARE:
        return []
    return [f"{words.percent(share)} of the step is waiting that no cause explains."]


def _late_rank(result: Result) -> list[str]:
    """The rank waited for most, where no finding names it and waiting is left unexplained.

    A culprit holds up the other stages of its replica, which then come late as well.
    """
    if largest_share(result) <= MATERIAL_SHARE:
        return []
    if result.get("findings") and not _unexplained(result):
        return []
    first = next(iter(ranks(result)), None)
    if first is None or any(_names(culprit, first) for culprit in _culprits(result)):
        return []
    return [
        f"The other ranks waited for {first.name} for {words.percent(first.share)} of the step."
    ]


def _names(culprit: Mapping[str, Any], rank: RankWaits) -> bool:
    """Whether a finding's culprit is that rank, its worker, dp rank or stage, or its host."""
    if culprit.get("rank") == rank.rank:
        return True
    if culprit.get("local_rank") is not None:
        return False
    places = [(culprit.get("dp_rank"), rank.dp_rank), (culprit.get("stage"), rank.stage)]
    known = [(named, own) for named, own in places if named is not None]
    if known:
        return all(named == own for named, own in known)
    return rank.host is not None and culprit.get("host") == rank.host
