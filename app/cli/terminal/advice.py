"""Advice in a terminal: each fix with its gain and what to paste, then fixes that do not apply."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app import formatting
from app.advice.advise import Advice
from app.advice.fix import Fix, Need, NotOffered
from app.advice.together import FixSet
from app.cli.output import printable
from app.formatting import TIMES


def render_advice(job: str, advice: Advice) -> RenderableType:
    """All fixes, the one that wins most first."""
    return Group(Text(_headline(printable(job), advice), style="bold"), *_parts(advice))


def _headline(job: str, advice: Advice) -> str:
    if advice.withheld is not None:
        return f"No advice for {job}: {advice.withheld}."
    if not advice.fixes:
        return f"No fix is known for {job}."
    best = advice.fixes[0]
    return (
        f"{printable(best.title)}: {job} would run {best.speed_up:.2f}{TIMES} as fast, "
        f"{best.gpu_hours_per_day:,.0f} GPU-hours a day less."
    )


def _parts(advice: Advice) -> Iterator[RenderableType]:
    for number, fix in enumerate(advice.fixes, 1):
        yield Text(f"\n{number}. {printable(fix.title)}", style="bold")
        yield Padding(_figures(fix), (0, 0, 0, 3))
        for each in fix.paste:
            yield Padding(Text(f"{each.label}:", style="dim"), (0, 0, 0, 3))
            yield Text(printable_lines(each.text), no_wrap=True, overflow="ignore")
        for need in fix.needs:
            yield Padding(Text(f"To complete this: {_need(need)}.", style="dim"), (0, 0, 0, 3))
    if advice.together is not None:
        names = " + ".join(each.name for each in advice.together.fixes)
        yield Text(f"\nTogether: {names}", style="bold")
        yield Padding(_together(advice.together), (0, 0, 0, 3))
    if advice.not_offered:
        yield Text("\nNot advised", style="bold")
        yield _not_offered(advice.not_offered)


def printable_lines(text: str) -> str:
    """The text with its line breaks, and without anything else that a terminal obeys."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _figures(fix: Fix) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    fastest_s, slowest_s = fix.step_range_s
    least, most = fix.gpu_hours_per_day_range
    times = f"instead of {fix.before_s:.3f} s; from {fastest_s:.3f} to {slowest_s:.3f} s"
    table.add_row("step", f"{fix.step_s:.3f} s", times)
    table.add_row("speed-up", f"{fix.speed_up:.3f}{TIMES}", "simulated")
    hours = f"GPU-hours; from {least:,.1f} to {most:,.1f}"
    table.add_row("won a day", f"{fix.gpu_hours_per_day:,.1f}", hours)
    table.add_row(
        "confidence", formatting.confidence_figure(fix.confidence), "of the cause and the replay"
    )
    table.add_row("pays after", *_pays(fix))
    table.add_row("risk", "", Text(printable(fix.risk)))
    return table


def _together(found: FixSet) -> Text:
    return Text(
        f"step {found.step_s:.3f} s instead of {found.before_s:.3f} s: {found.speed_up:.3f}{TIMES} "
        f"as fast, {found.gpu_hours_per_day:,.1f} GPU-hours a day less; simulated together, as "
        "gains do not add up"
    )


def _pays(fix: Fix) -> tuple[str, str]:
    if not fix.stops_job:
        return "at once", "the job need not stop"
    if fix.pays_after_minutes is None:
        return "not known", "the cost of a restart was not given"
    return f"{fix.pays_after_minutes:,.0f} min", f"of training, for one restart; {_lost(fix)}"


def _lost(fix: Fix) -> str:
    """What the cause has cost beside what the restart costs (ski rental)."""
    if fix.lost_minutes is None or fix.stop_minutes is None:
        return "what was lost since the onset is not known"
    verdicts = {True: "act now", False: "not yet worth a stop", None: "it began before the record"}
    least = "at least " if fix.lost_is_at_least else ""
    lost = f"{least}{fix.lost_minutes:,.1f} of {fix.stop_minutes:,.0f} min lost so far"
    return f"{lost}: {verdicts[fix.pays_now]}"


def _need(need: Need) -> str:
    """What is needed, with the option that takes it."""
    if need.fact is None:
        return need.text
    return f"{need.text} (--{need.fact.replace('_', '-')})"


def _not_offered(others: tuple[NotOffered, ...]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("fix")
    table.add_column("reason", style="dim")
    for each in others:
        needs = f" (needs {'; '.join(map(_need, each.needs))})" if each.needs else ""
        table.add_row(
            each.name, Text(formatting.with_times_sign(printable(f"{each.reason}{needs}")))
        )
    return table
