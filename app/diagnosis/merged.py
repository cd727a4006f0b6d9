"""What several windows' findings say together: each cause once, with what it costs over all."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.diagnosis.changes import MOST_CHANGES, TOGETHER
from app.diagnosis.wording import percent

Result = Mapping[str, Any]

_COST = re.compile(r"; it costs [\d.]+ %( to [\d.]+ %)? of the job's GPU time$")
_SINCE = re.compile(r", since step \d+(?=;|$)")
_MEANS = ("score", "confidence")
_SHARE = "share_of_loss"
# More say nothing more: the page shows the first few, and each costs less than the one before.
MOST_FINDINGS = 20


class _Seen(NamedTuple):
    """A finding, and what its window's steps took and lost."""

    window: int
    finding: Result
    recorded_s: float
    lost_s: float


def merged(results: Sequence[Result], figures: Result) -> dict[str, Any]:
    """The blocks about causes, of windows of one run in their order, with their joint `figures`.

    A finding is one cause with the same culprits, or with ever other ones. It keeps the words and
    the evidence of the newest window that has it, costs what it does in the mean over all windows
    that were looked at (its share of the loss is one of all their loss), and says in how many of
    them it was seen. Of many the most costly are told, and how many more there are.
    """
    told = {"changes": _changes(results), "fingerprint": _fingerprint(results, figures)}
    looked_at = [each for each in results if each["findings"] is not None]
    if not looked_at:
        ruled_out = results[-1]["ruled_out"]
        return {"findings": None, "more_findings": 0, "ruled_out": ruled_out, **told}
    findings = _findings(looked_at)
    named = {each["cause"] for each in findings}
    others = [each for each in looked_at[-1]["ruled_out"] or () if each["cause"] not in named]
    return {
        "findings": findings[:MOST_FINDINGS],
        "more_findings": max(0, len(findings) - MOST_FINDINGS),
        "ruled_out": others,
        **told,
    }


def _findings(looked_at: Sequence[Result]) -> list[dict[str, Any]]:
    seen: dict[tuple[Any, ...], list[_Seen]] = {}
    first_rank = _first_ranks(looked_at)
    total_s = total_lost_s = 0.0
    for at, result in enumerate(looked_at):
        times = {name: sum(each) for name, each in result["step_time_s"].items()}
        lost_s = times["simulated"] - times["ideal"]
        for finding in result["findings"]:
            of_it = seen.setdefault(_key(finding, first_rank), [])
            of_it.append(_Seen(at, finding, times["recorded"], lost_s))
        total_s += times["recorded"]
        total_lost_s += lost_s
    found = [_one(each, len(looked_at), total_s, total_lost_s) for each in seen.values()]
    return sorted(found, key=lambda each: (-(each["cost"] or 0.0), -each["score"], each["cause"]))


def _key(finding: Result, first_rank: Mapping[tuple[str, int, int], int]) -> tuple[Any, ...]:
    """Of a cause that wanders who it was last says nothing: it is one finding."""
    cause = finding["cause"]
    if finding["persistence"] == "rotating":
        return (cause, "rotating")
    return (cause, *sorted({_who(cause, each, first_rank) for each in finding["culprits"]}))


def _who(
    cause: str, culprit: Result, first_rank: Mapping[tuple[str, int, int], int]
) -> tuple[str, ...]:
    """A worker or GPU by its global rank: its host and number there may become known later.

    Results of older versions name workers by place only: such a one is the first rank there. A
    dp rank or stage goes by its number, and a whole host by its name.
    """
    worker = _worker(culprit)
    rank = culprit.get("rank")
    if rank is None and worker is not None:
        rank = first_rank.get((cause, *worker))
    if rank is not None:
        return ("rank", str(rank))
    place = tuple(str(culprit.get(name, "")) for name in ("dp_rank", "stage"))
    return ("place", *place) if any(place) else ("host", str(culprit.get("host", "")))


def _first_ranks(looked_at: Sequence[Result]) -> dict[tuple[str, int, int], int]:
    """By cause, dp rank and stage: the lowest global rank that any finding names there."""
    found: dict[tuple[str, int, int], int] = {}
    for finding in (each for result in looked_at for each in result["findings"]):
        for culprit in finding["culprits"]:
            worker, rank = _worker(culprit), culprit.get("rank")
            if worker is not None and rank is not None:
                key = (finding["cause"], *worker)
                found[key] = min(rank, found.get(key, rank))
    return found


def _worker(culprit: Result) -> tuple[int, int] | None:
    dp_rank, stage = culprit.get("dp_rank"), culprit.get("stage")
    return None if dp_rank is None or stage is None else (dp_rank, stage)


def _one(
    seen: Sequence[_Seen], num_windows: int, total_s: float, total_lost_s: float
) -> dict[str, Any]:
    # Windows that lack the finding lost nothing to it, and took their time all the same.
    newest = seen[-1].finding
    onset = _onset([each.finding["onset_step"] for each in seen])
    cost = _mean([(each.finding["cost"], each.recorded_s) for each in seen], total_s)
    cost_range = _range(seen, total_s)
    shares = [(each.finding["evidence"].get(_SHARE), each.lost_s) for each in seen]
    return {
        **newest,
        **{name: sum(each.finding[name] for each in seen) / len(seen) for name in _MEANS},
        "onset_step": onset,
        "cost": cost,
        "cost_range": cost_range,
        "evidence": {**newest["evidence"], _SHARE: _mean(shares, total_lost_s)},
        "sentence": _sentence(newest["sentence"], onset, cost, cost_range),
        "seen_in": {"windows": len({each.window for each in seen}), "of": num_windows},
    }


def _range(seen: Sequence[_Seen], total_s: float) -> list[float] | None:
    """The least and the most that it cost, where any window has only a range."""
    if not any(each.finding.get("cost_range") for each in seen):
        return None
    ends = []
    for at in (0, 1):
        known = [
            ((each.finding.get("cost_range") or [each.finding["cost"]] * 2)[at], each.recorded_s)
            for each in seen
        ]
        ends.append(_mean(known, total_s) or 0.0)
    return ends


def _mean(values: Sequence[tuple[float | None, float]], total: float) -> float | None:
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) / total if known and total > 0 else None


def _onset(steps: Sequence[int | None]) -> int | None:
    """The earliest; a cause that was older than what the first window knew stays so."""
    known = [step for step in steps if step is not None]
    return None if steps[0] is None else min(known)


def _sentence(
    newest: str, onset: int | None, cost: float | None, cost_range: Sequence[float] | None
) -> str:
    """The newest words, with the onset and the cost of all windows."""
    said = _SINCE.sub("" if onset is None else f", since step {onset}", newest)
    if cost is None:
        return said
    costs = percent(cost)
    if cost_range is not None:
        costs = " to ".join(percent(end) for end in cost_range)
    return _COST.sub(f"; it costs {costs} of the job's GPU time", said)


def _changes(results: Sequence[Result]) -> list[Any] | None:
    """All that any window knows of, in the words of the newest one."""
    known = [each["changes"] for each in results if each.get("changes") is not None]
    if not known:
        return None
    kept: list[Any] = []
    for change in (change for each in reversed(known) for change in each):
        if not any(_is_same(change, other) for other in kept):
            kept.append(change)
    return sorted(kept, key=lambda each: (each["step"], each["what"]))[-MOST_CHANGES:]


def _is_same(one: Result, other: Result) -> bool:
    return bool(
        one["what"] == other["what"]
        and one["culprits"] == other["culprits"]
        and (one["ratio"] > 1) == (other["ratio"] > 1)
        and abs(one["step"] - other["step"]) <= TOGETHER
    )


def _fingerprint(results: Sequence[Result], figures: Result) -> dict[str, Any] | None:
    """Shares of the joint loss; of the variance, the mean of the windows' shares."""
    known = [each["fingerprint"] for each in results if each.get("fingerprint") is not None]
    if not known:
        return None
    return {
        "variance": _variance([each["variance"] for each in known]),
        "optype_share": _shares(figures["optype_slowdown"]),
        "stage_share": figures["stage_share"],
    }


def _variance(parts: Sequence[Result]) -> dict[str, float | None]:
    measured = [each for each in parts if None not in each.values()]
    if not measured:
        return dict.fromkeys(parts[0])
    return {name: sum(each[name] for each in measured) / len(measured) for name in parts[0]}


def _shares(optype_slowdown: Mapping[str, float]) -> dict[str, float]:
    lost = {name: max(0.0, slowdown - 1.0) for name, slowdown in optype_slowdown.items()}
    total = sum(lost.values())
    return {name: each / total if total > 0 else 0.0 for name, each in lost.items()}
