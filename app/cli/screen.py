"""A result as it is shown in a terminal; whatever colour says, a number says too."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.blocks import TIMES, Heatmap, Steps, times
from app.cli.causes import causes
from app.cli.colours import full_share, share_style
from app.cli.headline import Ranks, Result, clamped, headline, num_slowest, percent
from app.cli.waited_for import waited_for

_BAR_WIDTH = 30
# Types below this would be lines that all say 1.00; this many are shown in any case.
_WORTH_A_LINE = 1.005
_MIN_TYPES = 3


def summary(result: Result, ranks: Ranks | None = None) -> RenderableType:
    """Everything about one result, from the headline to the heatmap.

    With `ranks`, the global ranks [dp ranks][stages], workers are named by theirs, too.
    """
    return Group(
        *headline(result, ranks),
        Text(),
        figures(result),
        *causes(result),
        *waited_for(result),
        Text("\nOperation types (slowdown with only this type as recorded)", style="bold"),
        *optypes(result),
        Text(f"\nSteps (a full block is 1.5{TIMES} and more)", style="bold"),
        Steps(result),
        Text("\nWorkers (slowdown with only this worker as recorded)", style="bold"),
        Heatmap(result["worker_slowdown"]),
    )


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
    discrepancy = result["fidelity"]["discrepancy"]
    count = num_slowest(result)
    workers = "slowest worker" if count == 1 else f"{count:,} slowest workers"
    return [
        ("GPUs", f"{job['world_size']:,}", layout),
        ("steps", f"{steps:,}", _which_steps(result)),
        ("step, recorded", _seconds(means["recorded"]), "mean"),
        ("step, simulated", _seconds(means["simulated"]), "mean, without launch delay"),
        ("step, ideal", _seconds(means["ideal"]), "mean, without stragglers"),
        ("slowdown", times(result["slowdown"], 3), "simulated over ideal"),
        ("launch slowdown", times(result["launch_slowdown"], 3), "recorded over simulated"),
        *_coverage(result),
        ("discrepancy", percent(discrepancy, 1), "simulated against recorded; low above 5 %"),
        ("GPU time wasted", percent(result["gpu_time_wasted"], 1), "1 - 1 / slowdown"),
        ("GPU-hours lost", f"{result['gpu_hours_lost']:z,.2f}", "in these steps"),
        ("M_W", _ratio(result["m_w"]), f"share won back with the {workers} ideal"),
        ("M_S", _ratio(result["m_s"]), "share won back with the last stage ideal"),
    ]


def _coverage(result: Result) -> list[tuple[str, str, str]]:
    share = result.get("coverage")
    if share is None:
        return []
    return [("coverage", percent(share, 0), "of a step is recorded operations; low below 60 %")]


def _which_steps(result: Result) -> str:
    skipped, structures = len(result["skipped_steps"]), len(result.get("structures", ()))
    said = [f"{skipped:,} more left out, see below"] if skipped else []
    said += [f"of {structures:,} structures, replayed apart"] if structures > 1 else []
    return "; ".join([f"{result['steps'][0]:,} to {result['steps'][-1]:,}", *said])


def optypes(result: Result) -> list[RenderableType]:
    """A bar for every op type that matters, slowest first, full at 1.5; the others counted."""
    table = Table(box=None, show_header=False, pad_edge=False)
    slowest_first = sorted(result["optype_slowdown"].items(), key=lambda item: -item[1])
    matter = sum(slowdown >= _WORTH_A_LINE for _, slowdown in slowest_first)
    shown = max(matter, _MIN_TYPES)
    for name, slowdown in slowest_first[:shown]:
        length = round(full_share(slowdown) * _BAR_WIDTH)
        bar = Text("█" * length, style=share_style(slowdown))
        table.add_row(name, times(slowdown, 3), bar)
    others = slowest_first[shown:]
    if not others:
        return [table]
    more = f"{len(others):,} more at {times(others[0][1], 3)} or less"
    return [table, Text(more, style="dim")]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _ratio(share: float | None) -> str:
    return "unknown" if share is None else f"{clamped(share):.2f}"
