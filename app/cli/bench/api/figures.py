"""What the answers of all addresses tell: percentiles of each, and which are the slowest."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.bench.api.measuring import Answer

BAR_MS = 100.0


def figures(answers: Mapping[str, Sequence[Answer]], refused: Mapping[str, int]) -> dict[str, Any]:
    """Percentiles in milliseconds, of all answers, of each address, and of the slowest one."""
    of_address = {address: _percentiles(each) for address, each in answers.items()}
    slowest = max(of_address, key=lambda address: of_address[address]["p99_ms"])
    return {
        "addresses": len(of_address),
        **_percentiles([answer for each in answers.values() for answer in each]),
        "slowest": slowest,
        "slowest_p99_ms": of_address[slowest]["p99_ms"],
        "over_100_ms": _over(of_address, "p99_ms"),
        "busy_over_100_ms": _over(of_address, "busy_p99_ms"),
        "refused": dict(refused),
        "by_address": of_address,
    }


def _percentiles(answers: Sequence[Answer]) -> dict[str, float]:
    """Until all of an answer was there; and for how long the API was busy, if that is known."""
    import numpy as np

    kinds = {"": [each.took_s for each in answers]}
    busy_s = [each.busy_s for each in answers if each.busy_s is not None]
    if busy_s:
        kinds["busy_"] = busy_s
    return {
        f"{kind}p{percent}_ms": round(1e3 * float(np.percentile(seconds, percent)), 2)
        for kind, seconds in kinds.items()
        for percent in (50, 99)
    }


def _over(of_address: Mapping[str, Mapping[str, float]], name: str) -> list[str]:
    return [address for address, each in of_address.items() if each.get(name, 0.0) >= BAR_MS]
