"""Combines the causes of several windows: each cause once, with its cost over all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from app import formatting
from app.result.causes import SILENT_WORKER
from app.result.clock_times import step_ends_s
from app.result.finding import SentenceParts
from app.result.sentence import cost_words, unexplained_sentence, whole_sentence
from app.result.step_counts import total_s

Result = Mapping[str, Any]

_MEANS = ("score", "confidence")
_SHARE = "share_of_loss"
# The most costly ones; the page shows only the first few.
MAX_FINDINGS = 20
# Only the newest changes are listed; those of several workers so many steps apart are one.
MAX_CHANGES = 32
MAX_STEPS_APART = 2


class _WindowFinding(NamedTuple):
    """A finding, with the recorded and the lost time of its window, and the window's steps.

    `ended_s` are the Unix times at which these ended, as far as known.
    """

    window: int
    finding: Result
    recorded_s: float
    lost_s: float
    steps: Sequence[int]
    ended_s: Mapping[int, float]


def combine_causes(results: Sequence[Result], figures: Result) -> dict[str, Any]:
    """The blocks about causes for windows of one run, in order, with their combined `figures`.

    Findings of one cause with the same culprits, or with rotating ones, become one finding: words
    and evidence of the newest window, cost and share of the loss over all diagnosed windows, and
    the number of windows that show it. One that the newest diagnosed window does not show has
    ended. The most costly ones are listed, the others counted.
    """
    others = {
        "changes": _changes(results),
        "fingerprint": _fingerprint(results, figures),
        "unexplained": combined_unexplained(results),
        "advice": results[-1].get("advice"),  # of the newest window; older ones were stored without
    }
    diagnosed = [each for each in results if each["findings"] is not None]
    if not diagnosed:
        ruled_out = results[-1]["ruled_out"]
        return {"findings": None, "more_findings": 0, "ruled_out": ruled_out, **others}
    findings = _findings(diagnosed)
    named = {each["cause"] for each in findings}
    ruled_out = [each for each in diagnosed[-1]["ruled_out"] or () if each["cause"] not in named]
    return {
        "findings": findings[:MAX_FINDINGS],
        "more_findings": max(0, len(findings) - MAX_FINDINGS),
        "ruled_out": ruled_out,
        **others,
    }


def _findings(diagnosed: Sequence[Result]) -> list[dict[str, Any]]:
    seen: dict[tuple[Any, ...], list[_WindowFinding]] = {}
    first_rank = _first_ranks(diagnosed)
    all_s = all_lost_s = 0.0
    for at, result in enumerate(diagnosed):
        recorded_s = total_s(result, "recorded")
        lost_s = total_s(result, "simulated") - total_s(result, "ideal")
        steps = result.get("steps") or ()
        ended_s = step_ends_s(result)
        for finding in result["findings"]:
            of_it = seen.setdefault(_key(finding, first_rank), [])
            of_it.append(_WindowFinding(at, finding, recorded_s, lost_s, steps, ended_s))
        all_s += recorded_s
        all_lost_s += lost_s
    found = [_one(each, len(diagnosed), all_s, all_lost_s) for each in seen.values()]
    return sorted(found, key=by_cost)


def by_cost(finding: Result) -> tuple[Any, ...]:
    """Sorts findings: missing workers, of which all else is unknown, then the most costly first."""
    cost = finding["cost"] or 0.0
    return (finding["cause"] != SILENT_WORKER, -cost, -finding["score"], finding["cause"])


def leading(findings: Sequence[Result] | None) -> Result | None:
    """The most costly finding; a missing worker only where nothing else was found."""
    found = findings or ()
    return next(
        (finding for finding in found if finding["cause"] != SILENT_WORKER), next(iter(found), None)
    )


def _key(finding: Result, first_rank: Mapping[tuple[str, int, int], int]) -> tuple[Any, ...]:
    """What identifies a finding; the culprits of a rotating cause do not count."""
    cause = finding["cause"]
    if finding["persistence"] == "rotating":
        return (cause, "rotating")
    return (cause, *sorted({_identity(cause, each, first_rank) for each in finding["culprits"]}))


def _identity(
    cause: str, culprit: Result, first_rank: Mapping[tuple[str, int, int], int]
) -> tuple[str, ...]:
    """What identifies a culprit: global rank, else dp rank and stage, else host.

    Host and local rank of a worker may become known later. Results of older versions have no ranks:
    the lowest rank known at that dp rank and stage is taken.
    """
    worker = _worker(culprit)
    rank = culprit.get("rank")
    if rank is None and worker is not None:
        rank = first_rank.get((cause, *worker))
    if rank is not None:
        return ("rank", str(rank))
    place = tuple(str(culprit.get(name, "")) for name in ("dp_rank", "stage"))
    return ("place", *place) if any(place) else ("host", str(culprit.get("host", "")))


def _first_ranks(diagnosed: Sequence[Result]) -> dict[tuple[str, int, int], int]:
    """By cause, dp rank and stage: the lowest global rank in any finding."""
    found: dict[tuple[str, int, int], int] = {}
    for finding in (each for result in diagnosed for each in result["findings"]):
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
    seen: Sequence[_WindowFinding], num_windows: int, all_s: float, all_lost_s: float
) -> dict[str, Any]:
    # Windows without the finding count as time without loss.
    newest = seen[-1].finding
    onset = joint_onset(
        [(each.steps[0] if each.steps else 0, each.finding["onset_step"]) for each in seen]
    )
    end = _end(seen[-1], is_newest=seen[-1].window == num_windows - 1)
    cost = _mean([(each.finding["cost"], each.recorded_s) for each in seen], all_s)
    cost_range = _range(seen, all_s)
    shares = [(each.finding["evidence"].get(_SHARE), each.lost_s) for each in seen]
    return {
        **newest,
        **{name: sum(each.finding[name] for each in seen) / len(seen) for name in _MEANS},
        "onset_step": onset,
        "end_step": end,
        "onset_at": _time_of(seen, "onset_step", "onset_at", onset),
        "ended_at": _time_of(seen, "end_step", "ended_at", end) or _window_end(seen[-1], end),
        "cost": cost,
        "cost_range": cost_range,
        "evidence": {**newest["evidence"], _SHARE: _mean(shares, all_lost_s)},
        "sentence": _sentence(newest, onset, end, cost, cost_range),
        "seen_in": {"windows": len({each.window for each in seen}), "of": num_windows},
    }


def _time_of(
    seen: Sequence[_WindowFinding], step_key: str, time_key: str, step: int | None
) -> str | None:
    """The time of an onset or end, from the windows that name the same step."""
    times = (each.finding.get(time_key) for each in seen if each.finding.get(step_key) == step)
    return None if step is None else next((at for at in times if at is not None), None)


def _window_end(newest: _WindowFinding, end: int | None) -> str | None:
    """When a step of the window ended which no finding names as its end."""
    return None if end is None else formatting.utc_timestamp(newest.ended_s.get(end))


def _range(seen: Sequence[_WindowFinding], all_s: float) -> list[float] | None:
    """Bounds of the cost, where any window has a range."""
    if not any(each.finding.get("cost_range") for each in seen):
        return None
    ends = []
    for at in (0, 1):
        known = [
            ((each.finding.get("cost_range") or [each.finding["cost"]] * 2)[at], each.recorded_s)
            for each in seen
        ]
        ends.append(_mean(known, all_s) or 0.0)
    return ends


def _mean(values: Sequence[tuple[float | None, float]], total: float) -> float | None:
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) / total if known and total > 0 else None


def joint_onset(seen: Sequence[tuple[int, int | None]]) -> int | None:
    """The earliest onset of a finding in windows that show it: each one's first step, and onset.

    None if the first window does not know it, unless a later one has found it before that window.
    """
    known = [onset for _, onset in seen if onset is not None]
    if not known:
        return None
    first_step, first_onset = seen[0]
    earliest = min(known)
    return earliest if first_onset is not None or earliest < first_step else None


def _end(newest: _WindowFinding, *, is_newest: bool) -> int | None:
    """The last step with the cause; None while it lasts, or where that step is not known."""
    end: int | None = newest.finding.get("end_step")
    if end is not None or is_newest:
        return end
    steps = newest.finding["evidence"].get("steps") or newest.steps
    return int(steps[-1]) if steps else None


def finding_key(finding: Result) -> tuple[Any, ...]:
    """What identifies a finding among those of other windows of one release."""
    return _key(finding, {})


def with_cost(finding: Result, ratio: float) -> dict[str, Any]:
    """The finding with its cost times `ratio`, at most all of the time, in its sentence too."""
    ends = finding.get("cost_range")
    cost = None if finding["cost"] is None else min(1.0, finding["cost"] * ratio)
    bounds = None if ends is None else [min(1.0, each * ratio) for each in ends]
    sentence = _sentence(finding, finding["onset_step"], finding.get("end_step"), cost, bounds)
    return {**finding, "cost": cost, "cost_range": bounds, "sentence": sentence}


def _sentence(
    newest: Result,
    onset: int | None,
    end: int | None,
    cost: float | None,
    cost_range: Sequence[float] | None,
) -> str:
    """The newest fact with the onset, end and cost of all windows.

    Results of older versions have no parts: their sentence is kept as it is.
    """
    if "sentence_parts" not in newest:
        return str(newest["sentence"])
    later = newest["evidence"].get("cost_once_others_are_mended")
    costs = cost_words(cost, cost_range, later, is_past=end is not None)
    return whole_sentence(
        msgspec.convert(newest["sentence_parts"], SentenceParts), onset, end, costs
    )


def _changes(results: Sequence[Result]) -> list[Any] | None:
    """The changes that any window knows, from the newest one that has each."""
    known = [each["changes"] for each in results if each.get("changes") is not None]
    if not known:
        return None
    kept: list[Any] = []
    for change in (change for each in reversed(known) for change in each):
        if not any(_is_same(change, other) for other in kept):
            kept.append(change)
    return sorted(kept, key=lambda each: (each["step"], each["what"]))[-MAX_CHANGES:]


def _is_same(one: Result, other: Result) -> bool:
    return bool(
        one["what"] == other["what"]
        and one["culprits"] == other["culprits"]
        and (one["ratio"] > 1) == (other["ratio"] > 1)
        and abs(one["step"] - other["step"]) <= MAX_STEPS_APART
    )


def _fingerprint(results: Sequence[Result], figures: Result) -> dict[str, Any] | None:
    """Shares of the combined loss; the mean of the windows' shares of the variance."""
    known = [each["fingerprint"] for each in results if each.get("fingerprint") is not None]
    if not known:
        return None
    return {
        "variance": _variance([each["variance"] for each in known]),
        "optype_share": _shares(figures["optype_slowdown"]),
        "stage_share": figures["stage_share"],
    }


_SHARES = ("share", "share_of_loss", "late_launch_share", "stop_share")


def combined_unexplained(results: Sequence[Result]) -> dict[str, Any] | None:
    """Means over the windows, weighted by their time; the place is that of the largest loss."""
    known = [
        (each["unexplained"], total_s(each, "recorded"))
        for each in results
        if each.get("unexplained") is not None
    ]
    if not known:
        return None
    worst, _ = max(known, key=lambda each: each[0]["share"] * each[1])
    means = {}
    for name in _SHARES:
        of_name = [(block[name], weight) for block, weight in known if block[name] is not None]
        means[name] = _mean(of_name, sum(weight for _, weight in of_name))
    steps = sorted({step for block, _ in known for step in block["stop_steps"]})
    block = {**worst, **means, "stop_steps": steps}
    return {**block, "sentence": unexplained_sentence(block)}


def _variance(parts: Sequence[Result]) -> dict[str, float | None]:
    measured = [each for each in parts if None not in each.values()]
    if not measured:
        return dict.fromkeys(parts[0])
    return {name: sum(each[name] for each in measured) / len(measured) for name in parts[0]}


def _shares(optype_slowdown: Mapping[str, float]) -> dict[str, float]:
    lost = {name: max(0.0, slowdown - 1.0) for name, slowdown in optype_slowdown.items()}
    total = sum(lost.values())
    return {name: each / total if total > 0 else 0.0 for name, each in lost.items()}
