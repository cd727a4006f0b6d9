"""What a result comes down to, in one to three sentences."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from app.cli.blocks import times
from app.cli.files import printable

Result = dict[str, Any]
Ranks = Sequence[Sequence[int]]

# Where the field begins to look closer, and where a cause explains most of the loss.
_LOOK_CLOSER = 1.03
_MOST = 0.5


def headline(result: Result, ranks: Ranks | None = None) -> list[Text]:
    """The fact, then the cost; then whom it can be put down to, if to anybody."""
    name, slowdown = printable(result["job"]["name"]), result["slowdown"]
    said = f"{name} runs at {times(slowdown, 2)} of its ideal"
    late = _late_launches(result, ranks)
    if result["fidelity"]["verdict"] == "low":
        return [Text(f"{said}.", style="bold"), _doubt(result), *late]
    if slowdown < _LOOK_CLOSER:
        quiet = "" if late else " Nothing stands out."
        return [Text(f"{said}.{quiet}", style="bold"), *late]
    lost = Text(
        f"{said}: it loses {percent(result['gpu_time_wasted'], 0)} of its GPU time.", style="bold"
    )
    return [lost, *_put_down_to(result, ranks), *late]


def _doubt(result: Result) -> Text:
    discrepancy = percent(result["fidelity"]["discrepancy"], 0)
    return Text(
        f"Low fidelity: simulated and recorded step time differ by {discrepancy}. "
        "Do not blame anybody by these figures.",
        style="magenta",
    )


def _put_down_to(result: Result, ranks: Ranks | None) -> list[Text]:
    """The fewest ops that explain most of the loss; one stage or replica alone is no evidence."""
    sizes, shares, worker_share = result["job"], result["stage_share"], result["m_w_exact"] or 0.0
    if sizes["dp_size"] > 1 and worker_share >= _MOST:
        return [_slow_workers(result, ranks, worker_share)]
    if sizes["pp_size"] > 1 and None not in shares and max(shares) >= _MOST:
        stage = shares.index(max(shares))
        return [Text(f"Stage {stage} accounts for {_share(shares[stage])} of the lost time.")]
    return []


def _slow_workers(result: Result, ranks: Ranks | None, share: float) -> Text:
    dp_rank, stage, slowdown = _highest(result["worker_slowdown"])
    count = num_slowest(result)
    who = "The slowest worker accounts" if count == 1 else f"The slowest {count:,} workers account"
    it_is = "it is" if count == 1 else "the slowest is"
    worker = _worker(dp_rank, stage, ranks)
    return Text(
        f"{who} for {_share(share)} of the lost time; {it_is} {worker} at {times(slowdown, 2)}."
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
    """A share as it is written: 49 and the sign."""
    return f"{100 * share:.{digits}f} %"


def _share(share: float) -> str:
    return percent(clamped(share), 0)


def clamped(share: float) -> float:
    """A share of the lost time, from 0 to 1."""
    # A difference of nearly equal times may leave 0 to 1; the JSON keeps it as it is.
    return min(max(share, 0.0), 1.0)
