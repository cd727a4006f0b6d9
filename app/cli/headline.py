"""What a result comes down to, in one to three sentences."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from app.charts.arrivals import remarks
from app.cli.blocks import times
from app.cli.files import printable

Result = dict[str, Any]
Ranks = Sequence[Sequence[int]]

# Where the field begins to look closer, and what is most of what others waited.
_LOOK_CLOSER = 1.03
_MOST = 0.5


def headline(result: Result, ranks: Ranks | None = None) -> list[Text]:
    """The fact, then the cost; then what is to blame, if anything is known to be."""
    name, slowdown = printable(result["job"]["name"]), result["slowdown"]
    said = f"{name} runs at {times(slowdown, 2)} of its ideal"
    late = [*_late_launches(result, ranks), *_remarks(result)]
    found = _most_costly(result)
    if result["fidelity"]["verdict"] == "low" and not found:
        return [Text(f"{said}.", style="bold"), _doubt(result), *late]
    if slowdown < _LOOK_CLOSER:
        quiet = "" if late or found else " Nothing stands out."
        return [Text(f"{said}.{quiet}", style="bold"), *found, *late]
    lost = Text(
        f"{said}: it loses {percent(result['gpu_time_wasted'], 0)} of its GPU time.", style="bold"
    )
    return [lost, *found, *late]


def _most_costly(result: Result) -> list[Text]:
    findings = result["findings"]
    return [Text(f"{printable(findings[0]['sentence'])}.")] if findings else []


def _remarks(result: Result) -> list[Text]:
    return [Text(printable(said)) for said in remarks(result)]


def _doubt(result: Result) -> Text:
    discrepancy = percent(result["fidelity"]["discrepancy"], 0)
    return Text(
        f"Low fidelity: simulated and recorded step time differ by {discrepancy}. "
        "Do not blame anybody by these figures.",
        style="magenta",
    )


def _late_launches(result: Result, ranks: Ranks | None) -> list[Text]:
    """Time that no operation took: hosts issued work late. Who held up most of the others?"""
    if result["launch_slowdown"] < _LOOK_CLOSER:
        return []
    said = f"Late launches add {percent(result['launch_slowdown'] - 1, 0)} to a step"
    waited = result["launch_delay"]["others_waited"]
    dp_rank, stage, longest_s = _highest(waited)
    total_s = sum(map(sum, waited))
    if longest_s >= _MOST * total_s > 0:
        worker, share = _worker(dp_rank, stage, ranks), _share(longest_s / total_s)
        said += f"; {share} of what workers waited for that was for the host of {worker}"
    return [Text(f"{said}.")]


def _highest(of_workers: Sequence[Sequence[float]]) -> tuple[int, int, float]:
    """The worker with the highest value: dp rank, stage, value."""
    workers = ((d, p) for d in range(len(of_workers)) for p in range(len(of_workers[0])))
    dp_rank, stage = max(workers, key=lambda worker: of_workers[worker[0]][worker[1]])
    return dp_rank, stage, of_workers[dp_rank][stage]


def _worker(dp_rank: int, stage: int, ranks: Ranks | None) -> str:
    place = f"dp {dp_rank}, stage {stage}"
    return place if ranks is None else f"rank {ranks[dp_rank][stage]} ({place})"


def num_slowest(result: Result) -> int:
    """How many workers M_W is about: 3 % of them, rounded up."""
    return (3 * int(result["job"]["dp_size"]) * int(result["job"]["pp_size"]) + 99) // 100


def percent(share: float, digits: int) -> str:
    """A share as it is written: 49 and the sign; never minus zero."""
    return f"{100 * share:z.{digits}f} %"


def _share(share: float) -> str:
    return percent(clamped(share), 0)


def clamped(share: float) -> float:
    """A share of the lost time, from 0 to 1."""
    # A difference of nearly equal times may leave 0 to 1; the JSON keeps it as it is.
    return min(max(share, 0.0), 1.0)
