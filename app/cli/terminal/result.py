"""The result of a window in a terminal: headline, figures, causes, waits and heatmap.

Every colour is also given as a number. The headline is one to three sentences: the fact, its
cost, and the cause where one is known. Causes that were checked and ruled out have a line each.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from app import formatting
from app.charts.job.headline import missing_ranks_sentence
from app.charts.job.waits import (
    RankWaits,
    has_material_waits,
    own_delay_text,
    rank_waits,
    remarks,
)
from app.cli.output import printable
from app.cli.terminal import plain_table, right_aligned
from app.cli.terminal.blocks import (
    StepBlocks,
    WorkerHeatmap,
    format_times,
    full_share,
    known,
    share_style,
)
from app.formatting import TIMES, lower_first
from app.result.arrivals import ArrivalsRecord
from app.result.causes import SILENT_WORKER
from app.result.figures import num_slowest_workers
from app.result.finding import Finding, RuledOut
from app.result.window_result import TopFix, WindowResult, mean_s
from app.result.words import fix_wins, loses, low_fidelity_words, observed, of_ideal

Ranks = Sequence[Sequence[int]]


def _said(text: str) -> str:
    """A sentence of a result as a terminal shows it, with the pages' multiplication sign."""
    return formatting.with_times_sign(printable(text))


# Smallest launch slowdown worth a sentence, and the fraction of others' waits worth a name.
_MIN_LAUNCH_SLOWDOWN = 1.03
_MAIN_SHARE = 0.5


def headline(result: WindowResult, ranks: Ranks | None = None) -> list[Text]:
    """The slowdown and its cost, then the most costly finding, if any."""
    name, slowdown = printable(result.job.name), known(result.slowdown)
    text = f"{name} runs at {of_ideal(result.slowdown)}"
    remarked = [Text(printable(text)) for text in remarks(result)]
    late = [*_late_launches(result, ranks), *remarked]
    leading = _most_costly(result)
    if result.fidelity.verdict == "low" and not leading:
        return [Text(f"{text}.", style="bold"), _caveat(result), *late]
    if slowdown < _MIN_LAUNCH_SLOWDOWN:
        quiet = "" if late or leading else " Nothing stands out."
        return [Text(f"{text}.{quiet}", style="bold"), *leading, *late]
    lost = f"{text}: it {loses(known(result.gpu_time_wasted))}."
    return [Text(lost, style="bold"), *leading, *late]


def _most_costly(result: WindowResult) -> list[Text]:
    """The most costly finding; after it says who is missing, if anybody is."""
    findings = result.findings or ()
    num_first = 2 if findings and findings[0].cause == SILENT_WORKER else 1
    missing = missing_ranks_sentence(result)
    return ([Text(missing)] if missing else []) + [
        Text(f"{_said(finding.sentence)}.") for finding in findings[:num_first]
    ]


def _caveat(result: WindowResult) -> Text:
    because = lower_first(low_fidelity_words(result)[0])
    return Text(f"Low fidelity: {because} Do not name a culprit by these figures.", style="magenta")


def _late_launches(result: WindowResult, ranks: Ranks | None) -> list[Text]:
    """Time lost to late kernel launches, and the worker that held up the others most."""
    slowdown = known(result.launch_slowdown)
    if slowdown < _MIN_LAUNCH_SLOWDOWN:
        return []
    added = percent(slowdown - 1, 0)
    text = f"Late launches, which this ratio leaves out, add {added} to a step"
    waited = known(result.launch_delay.others_waited)
    dp_rank, stage, longest_s = _highest(waited)
    total_s = sum(waited_s or 0.0 for of_rank in waited for waited_s in of_rank)
    if longest_s >= _MAIN_SHARE * total_s > 0:
        worker, share = _worker(dp_rank, stage, ranks), _share(longest_s / total_s)
        text += f"; {share} of what workers waited for that was for the host of {worker}"
    return [Text(f"{text}.")]


def _highest(of_workers: Sequence[Sequence[float | None]]) -> tuple[int, int, float]:
    """The worker with the highest value: dp rank, stage, value."""
    workers = ((d, p) for d in range(len(of_workers)) for p in range(len(of_workers[0])))
    dp_rank, stage = max(workers, key=lambda worker: of_workers[worker[0]][worker[1]] or 0.0)
    return dp_rank, stage, of_workers[dp_rank][stage] or 0.0


def _worker(dp_rank: int, stage: int, ranks: Ranks | None) -> str:
    place = f"dp {dp_rank}, stage {stage}"
    return place if ranks is None else f"rank {ranks[dp_rank][stage]} ({place})"


def percent(share: float, digits: int) -> str:
    """A fraction in percent; never minus zero."""
    return f"{100 * share:z.{digits}f} %"


def _share(share: float) -> str:
    return percent(clamp_share(share), 0)


def clamp_share(share: float) -> float:
    """A fraction of the lost time, clamped to 0 to 1.

    Rounding of nearly equal times may exceed the range; the JSON keeps the raw value.
    """
    return min(max(share, 0.0), 1.0)


def causes(result: WindowResult) -> list[RenderableType]:
    """A sentence per finding, most costly first, and a line per cause ruled out."""
    others = result.ruled_out
    if others is None:
        return []
    return [
        Text("\nCauses", style="bold"),
        *_findings(result, result.findings),
        *(Text(_said(fact), style="dim") for fact in observed(result)),
        Text("\nChecked and ruled out", style="bold"),
        _ruled_out(others),
    ]


def _findings(result: WindowResult, findings: Sequence[Finding] | None) -> list[Text]:
    if findings is None:
        because = lower_first(low_fidelity_words(result)[0])
        return [Text(f"Withheld: {because} Naming a cause would be a guess.")]
    if not findings:
        return [Text("No known cause fits." if remarks(result) else "None found.")]
    return [*map(_cause, findings), *_fix(result.advice)]


def _cause(finding: Finding) -> Text:
    sure = formatting.confidence(finding.confidence)
    return Text(f"{finding.cause} ({sure}): {_said(finding.sentence)}.")


def _fix(advice: TopFix | None) -> list[Text]:
    if advice is None:
        return []
    wins = fix_wins(advice.gpu_hours_per_day, advice.gpu_hours_per_day_range)
    gain = f"{formatting.ratio(advice.speed_up)} as fast, {wins}"
    return [Text(f"Fix: {printable(advice.title)}: {gain}. `paceline advise` has more.")]


def _ruled_out(causes: Sequence[RuledOut]) -> Table:
    # Text, not str: rich would read brackets in host names as markup.
    rows = (
        (denied.cause, Text(f"{'cannot tell: ' * denied.insufficient}{_said(denied.reason)}"))
        for denied in causes
    )
    return plain_table(["cause", Column("reason", style="dim")], rows, show_header=False)


_MAX_ROWS = 5
# Ranks with a smaller fraction of the waits are not listed.
_MIN_SHARE = 0.01


def wait_lines(result: WindowResult) -> list[RenderableType]:
    """The ranks most waited for, if the waits are material."""
    if not has_material_waits(result):
        return []
    listed = [
        waits for waits in rank_waits(result) if waits.is_culprit or waits.share >= _MIN_SHARE
    ]
    columns = [
        Column("rank", no_wrap=True),
        Column("place", no_wrap=True),
        Column("host", overflow="fold"),
        *right_aligned("own delay", "waited for", "of step", "times late"),
    ]
    return [
        Text("\nWaited for (mean a step, at collectives)", style="bold"),
        # Plain text: hosts may have brackets, which rich would read as markup.
        plain_table(columns, (map(Text, _row(waits)) for waits in listed[:_MAX_ROWS])),
        *_others_line(listed[_MAX_ROWS:]),
        Text(_occurrences(known(result.arrivals)), style="dim"),
    ]


def _others_line(left_out: Sequence[RankWaits]) -> list[Text]:
    if not left_out:
        return []
    most = formatting.percent(left_out[0].share)
    return [Text(f"{formatting.plural(len(left_out), 'more rank')}, each at {most} or less")]


def _row(waits: RankWaits) -> list[str]:
    host = printable(waits.host) if waits.host else "unknown"
    gpu = "" if waits.local_rank is None else f", GPU {waits.local_rank}"
    return [
        str(waits.rank),
        waits.place,
        host + gpu,
        own_delay_text(waits),
        formatting.seconds(waits.waited_for_s),
        formatting.percent(waits.share),
        formatting.percent(waits.late_share),
    ]


def _occurrences(arrivals: ArrivalsRecord) -> str:
    share = formatting.percent(arrivals.waiting_share or 0.0)
    number = formatting.plural(arrivals.num_occurrences, "collective")
    return f"Ranks spent {share} of their time waiting for later ones, in {number}."


_BAR_WIDTH = 30
# Types below this would show as 1.00; at least this many are shown.
_MIN_SHOWN_SLOWDOWN = 1.005
_MIN_OP_TYPES = 3


def summary(result: WindowResult, ranks: Ranks | None = None) -> RenderableType:
    """The whole result, from the headline to the heatmap.

    With `ranks`, global ranks [dp ranks][stages], workers are named by rank too. Without figures
    there are causes and facts alone.
    """
    if result.slowdown is None:
        reason = result.skipped_steps[-1].reason
        text = (
            f"{printable(result.job.name)} has no step that can be replayed: {printable(reason)}."
        )
        return Group(Text(text, style="bold"), *causes(result))
    return Group(
        *headline(result, ranks),
        Text(),
        figures(result),
        *causes(result),
        *wait_lines(result),
        Text("\nOperation types (slowdown with only this type as recorded)", style="bold"),
        *optypes(result),
        Text(f"\nSteps (a full block is 1.5{TIMES} and more)", style="bold"),
        StepBlocks(result),
        Text("\nWorkers (slowdown with only this worker as recorded)", style="bold"),
        WorkerHeatmap(known(result.worker_slowdown)),
    )


def figures(result: WindowResult) -> Table:
    """The figures of the result, with their meaning."""
    meaning = Column("meaning", style="dim")
    return plain_table(
        ["figure", *right_aligned("value"), meaning], _figure_rows(result), show_header=False
    )


def _imputed(result: WindowResult) -> list[tuple[str, str, str]]:
    """Imputed operations, and the workers that are missing."""
    imputed = result.imputed
    if imputed is None:
        return []
    ranks = [worker.rank for worker in imputed.workers]
    who = f"; missing: {formatting.ranks(ranks).lower()}" if ranks else ""
    return [("imputed", f"{imputed.ops:,}", f"operations, by the medians of their peers{who}")]


def _figure_rows(result: WindowResult) -> list[tuple[str, str, str]]:
    job = result.job
    layout = f"{job.dp_size} dp {TIMES} {job.pp_size} stages {TIMES} {job.tp_size} tp"
    recorded, simulated, ideal = (
        _seconds(mean_s(result, name)) for name in ("recorded", "simulated", "ideal")
    )
    discrepancy = percent(known(result.fidelity.discrepancy), 1)
    launch_slowdown = format_times(known(result.launch_slowdown), 3)
    count = num_slowest_workers(job.dp_size * job.pp_size)
    workers = "slowest worker" if count == 1 else f"{count:,} slowest workers"
    return [
        ("GPUs", f"{job.world_size:,}", layout),
        ("steps", f"{len(result.steps):,}", _which_steps(result)),
        *_imputed(result),
        ("step, recorded", recorded, "mean"),
        ("step, simulated", simulated, "mean, without launch delay"),
        ("step, ideal", ideal, "mean, without stragglers"),
        ("slowdown", format_times(known(result.slowdown), 3), "simulated over ideal"),
        ("launch slowdown", launch_slowdown, "recorded over simulated"),
        *_coverage(result),
        ("discrepancy", discrepancy, "simulated against recorded; low above 5 %"),
        ("GPU time wasted", percent(known(result.gpu_time_wasted), 1), "1 - 1 / slowdown"),
        ("GPU-hours lost", f"{known(result.gpu_hours_lost):z,.2f}", "in these steps"),
        ("won back, workers", _ratio(result.m_w), f"share of the loss, with the {workers} ideal"),
        ("won back, stage", _ratio(result.m_s), "share of the loss, with the last stage ideal"),
    ]


def _coverage(result: WindowResult) -> list[tuple[str, str, str]]:
    share = result.coverage
    if share is None:
        return []
    return [("coverage", percent(share, 0), "of a step is recorded operations; low below 60 %")]


def _which_steps(result: WindowResult) -> str:
    skipped, structures = len(result.skipped_steps), len(result.structures)
    notes = [f"{skipped:,} more left out, see below"] if skipped else []
    notes += [f"of {structures:,} structures, replayed apart"] if structures > 1 else []
    return "; ".join([f"{result.steps[0]:,} to {result.steps[-1]:,}", *notes])


def optypes(result: WindowResult) -> list[RenderableType]:
    """A bar for every op type that matters, slowest first, full at 1.5; the others counted."""
    slowest_first = sorted(result.optype_slowdown.items(), key=lambda item: -item[1])
    matter = sum(slowdown >= _MIN_SHOWN_SLOWDOWN for _, slowdown in slowest_first)
    shown = max(matter, _MIN_OP_TYPES)
    rows = (
        (name, format_times(slowdown, 3), Text(_bar(slowdown), style=share_style(slowdown)))
        for name, slowdown in slowest_first[:shown]
    )
    table = plain_table([], rows, show_header=False)
    others = slowest_first[shown:]
    if not others:
        return [table]
    more = f"{len(others):,} more at {format_times(others[0][1], 3)} or less"
    return [table, Text(more, style="dim")]


def _bar(slowdown: float) -> str:
    return "█" * round(full_share(slowdown) * _BAR_WIDTH)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _ratio(share: float | None) -> str:
    return "unknown" if share is None else f"{clamp_share(share):.2f}"
