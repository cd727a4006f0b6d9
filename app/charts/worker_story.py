"""The two sentences that open a worker's page."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import words
from app.engine.metrics import MAX_DISCREPANCY

Named = Sequence[Mapping[str, Any]]


def worker_story(
    result: Mapping[str, Any], dp_rank: int, stage: int, host: str | None
) -> tuple[str, str]:
    """What is known of a worker in a window: what it is blamed for, and what it costs alone."""
    name = words.worker(dp_rank, stage, {(dp_rank, stage): host} if host else None)
    if not result:
        return f"{name} is not measured yet.", "No complete step of this run has arrived."
    if not result.get("worker_slowdown"):
        return f"{name} is not measured in this window.", "No step of it was complete."
    named = findings_naming(result.get("findings") or [], dp_rank, stage, host)
    if (result.get("fidelity") or {}).get("verdict") == "low":
        sentence = _blamed(named) or f"{name}: its part in the loss is withheld."
        return sentence, (
            f"The simulated steps differ from the recorded ones by more than "
            f"{words.percent(MAX_DISCREPANCY)}: its slowdown would be a guess."
        )
    slowdown = result["worker_slowdown"][dp_rank][stage]
    alone = f"Alone it would slow the job to {words.ratio(slowdown)} of its ideal"
    place, num_workers = place_of(result["worker_slowdown"], dp_rank, stage)
    sentence = _blamed(named) or f"{name} is to blame for nothing that was found."
    return sentence, f"{alone}{_among(place, num_workers)}."


def findings_naming(
    findings: Named, dp_rank: int, stage: int, host: str | None
) -> list[Mapping[str, Any]]:
    """The findings that blame the worker, its stage, its replica or its host; costliest first."""
    return [
        each
        for each in findings
        if any(_names(culprit, dp_rank, stage, host) for culprit in each["culprits"])
    ]


def place_of(
    worker_slowdown: Sequence[Sequence[float]], dp_rank: int, stage: int
) -> tuple[int, int]:
    """1 for the slowest of all workers, and how many there are."""
    own = worker_slowdown[dp_rank][stage]
    every = [each for by_stage in worker_slowdown for each in by_stage]
    return 1 + sum(each > own for each in every), len(every)


def _names(culprit: Mapping[str, Any], dp_rank: int, stage: int, host: str | None) -> bool:
    known = {name: culprit[name] for name in ("dp_rank", "stage") if culprit.get(name) is not None}
    if known:
        return all({"dp_rank": dp_rank, "stage": stage}[name] == known[name] for name in known)
    return host is not None and culprit.get("host") == host


def _blamed(named: Named) -> str:
    if not named:
        return ""
    first = words.signs(words.contained(named[0]["sentence"])).removesuffix(".")
    more = f", and {words.counted(len(named) - 1, 'more cause')}" if len(named) > 1 else ""
    letter = first[0].upper() if first.startswith(("stage", "rank ")) else first[0]
    return f"{letter}{first[1:]}{more}."


def _among(place: int, num_workers: int) -> str:
    if num_workers == 1:
        return ""
    if place == 1:
        return f"; none of the {words.whole(num_workers)} workers costs more"
    others = "worker costs" if place == 2 else "workers cost"
    return f"; {words.whole(place - 1)} of {words.whole(num_workers)} {others} more"
