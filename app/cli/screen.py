"""A result as it is shown in a terminal; whatever colour says, a number says too."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.blocks import TIMES, Heatmap, Steps, times
from app.cli.colours import full_share, share_style

Result = dict[str, Any]

# Where the field begins to look closer, and where a cause explains most of the loss.
_LOOK_CLOSER = 1.03
_MOST = 0.5
_BAR_WIDTH = 30


def summary(result: Result) -> RenderableType:
    """Everything about one result, from the headline to the heatmap."""
    return Group(
        *headline(result),
        Text(),
        figures(result),
        Text("\nOperation types (slowdown with only this type as recorded)", style="bold"),
        optypes(result),
        Text("\nSteps", style="bold"),
        Steps(result),
        Text("\nWorkers (slowdown with only this worker as recorded)", style="bold"),
        Heatmap(result["worker_slowdown"]),
    )


def headline(result: Result) -> list[Text]:
    """The fact, then the cost; then whom it can be put down to, if to anybody."""
    name, slowdown = result["job"]["name"], result["slowdown"]
    said = f"{name} runs at {times(slowdown, 2)} of its ideal"
    if result["fidelity"]["verdict"] == "low":
        discrepancy = result["fidelity"]["discrepancy"]
        doubt = (
            f"Simulated and recorded step time differ by {_percent(discrepancy, 0)}: low fidelity."
        )
        return [Text(f"{said}.", style="bold"), Text(doubt, style="magenta")]
    if slowdown < _LOOK_CLOSER:
        return [Text(f"{said}. Nothing stands out.", style="bold")]
    lost = Text(
        f"{said}: it loses {_percent(result['gpu_time_wasted'], 0)} of its GPU time.", style="bold"
    )
    return [lost, *_put_down_to(result)]


def _put_down_to(result: Result) -> list[Text]:
    """The fewest ops that explain most of the loss; one stage or replica alone is no evidence."""
    sizes, shares, worker_share = result["job"], result["stage_share"], result["m_w"] or 0.0
    if sizes["dp_size"] > 1 and worker_share >= _MOST:
        dp_rank, stage, slowdown = _slowest_worker(result)
        return [
            Text(
                f"The slowest workers account for {_share(worker_share)} of the lost time; "
                f"the slowest is dp {dp_rank}, stage {stage} ({times(slowdown, 2)})."
            )
        ]
    if sizes["pp_size"] > 1 and None not in shares and max(shares) >= _MOST:
        stage = shares.index(max(shares))
        return [Text(f"Stage {stage} accounts for {_share(shares[stage])} of the lost time.")]
    return []


def figures(result: Result) -> Table:
    """Every single figure of the result with what it means."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for row in _figure_rows(result):
        table.add_row(*row)
    return table


def _figure_rows(result: Result) -> list[tuple[str, str, str]]:
    job, steps = result["job"], len(result["steps"])
    layout = f"{job['dp_size']} dp {TIMES} {job['pp_size']} stages {TIMES} {job['tp_size']} tp"
    means = {name: sum(times) / steps for name, times in result["step_time_s"].items()}
    return [
        ("GPUs", f"{job['world_size']:,}", layout),
        ("slowdown", times(result["slowdown"], 3), "simulated step time over ideal step time"),
        ("GPU time wasted", _percent(result["gpu_time_wasted"], 1), "1 - 1 / slowdown"),
        ("GPU-h lost", f"{result['gpu_hours_lost']:,.2f}", f"in these {steps:,} steps"),
        ("step, recorded", _seconds(means["recorded"]), "mean"),
        ("step, simulated", _seconds(means["simulated"]), "mean, without launch delay"),
        ("step, ideal", _seconds(means["ideal"]), "without stragglers"),
        ("launch slowdown", times(result["launch_slowdown"], 3), "recorded over simulated"),
        (
            "discrepancy",
            _percent(result["fidelity"]["discrepancy"], 1),
            "simulated against recorded",
        ),
        ("M_W", _ratio(result["m_w"]), "share won back by the slowest 3 % of workers"),
        ("M_S", _ratio(result["m_s"]), "share won back by the last stage"),
    ]


def optypes(result: Result) -> Table:
    """A bar for every op type, slowest first; full at 1.5."""
    table = Table(box=None, show_header=False, pad_edge=False)
    slowest_first = sorted(result["optype_slowdown"].items(), key=lambda item: -item[1])
    for name, slowdown in slowest_first:
        length = round(full_share(slowdown) * _BAR_WIDTH)
        bar = Text("█" * length, style=share_style(slowdown))
        table.add_row(name, times(slowdown, 3), bar)
    return table


def _slowest_worker(result: Result) -> tuple[int, int, float]:
    slowdowns = result["worker_slowdown"]
    workers = ((d, p) for d in range(len(slowdowns)) for p in range(len(slowdowns[0])))
    dp_rank, stage = max(workers, key=lambda worker: slowdowns[worker[0]][worker[1]])
    return dp_rank, stage, slowdowns[dp_rank][stage]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def _ratio(share: float | None) -> str:
    return "unknown" if share is None else f"{_clamped(share):.2f}"


def _share(share: float) -> str:
    return _percent(_clamped(share), 0)


def _clamped(share: float) -> float:
    # A difference of nearly equal times may leave 0 to 1; the JSON keeps it as it is.
    return min(max(share, 0.0), 1.0)
