"""The result of plain torch.profiler files in a terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.output import printable
from app.cli.terminal.result import causes
from app.formatting import percent, seconds, with_times_sign

Result = dict[str, Any]

_MAX_RANKS = 32
_MAX_TRANSFERS = 12
_MAX_NOTES = 10
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B"))


def profile_summary(result: Result) -> RenderableType:
    """Everything about one result, from the headline to the collectives."""
    profile = result["profile"]
    shown = [
        *_headline(result),
        *_refusals(profile),
        *(_no_verdict(result) if result["findings"] is None else causes(result)),
        Text("\nWhere the time of a step goes, by rank", style="bold"),
        _breakdown(profile["breakdown"]),
    ]
    if result["arrivals"] is not None:
        shown += [Text("\nWaited for", style="bold"), _waited_for(result["arrivals"])]
    if profile["collectives"]:
        shown += [Text("\nCollectives, longest first", style="bold")]
        shown += [_collectives(profile["collectives"])]
    return Group(*shown, *_notes(result))


def _headline(result: Result) -> list[RenderableType]:
    first, *others = result["profile"]["headline"]
    sentences = [each["sentence"] for each in result["findings"] or []]
    lines = [Text(printable(first), style="bold")]
    lines += [
        Text(f"{_capital(with_times_sign(printable(each)))}.", style="bold")
        for each in sentences[:1]
    ]
    return [*lines, *(Text(printable(each)) for each in others)]


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _no_verdict(result: Result) -> list[RenderableType]:
    reason = result["ruled_out"][0]["reason"]
    return [
        Text("\nCauses", style="bold"),
        Text(f"No verdict: {with_times_sign(printable(reason))}."),
    ]


def _refusals(profile: Result) -> list[RenderableType]:
    refusals = profile["refusals"]
    if not refusals:
        return []
    shown = [
        Text(f"left out: {printable(each)}", style="magenta") for each in refusals[:_MAX_NOTES]
    ]
    if len(refusals) > _MAX_NOTES:
        shown.append(Text(f"and {len(refusals) - _MAX_NOTES:,} more files are left out"))
    return [*shown]


def _breakdown(ranks: list[Result]) -> RenderableType:
    """The ranks that compute longest and shortest where they do not all fit."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rank", justify="right")
    for name in ("step", "computing", "exposed comm.", "of it waiting", "hidden comm.", "copying"):
        table.add_column(name, justify="right")
    table.add_column("idle", justify="right")
    shown = _extremes(ranks, "computing_s")
    for each in shown:
        step_s = each["step_s"]
        table.add_row(
            f"{each['rank']:,}",
            seconds(step_s),
            *(
                _share(each[key], step_s)
                for key in (
                    "computing_s",
                    "communicating_exposed_s",
                    "waiting_s",
                    "communicating_hidden_s",
                    "copying_s",
                    "idle_s",
                )
            ),
        )
    if len(shown) == len(ranks):
        return table
    more = (
        f"and {len(ranks) - len(shown):,} ranks that compute longer than some and less than others"
    )
    return Group(table, Text(more, style="dim"))


def _extremes(ranks: list[Result], key: str) -> list[Result]:
    if len(ranks) <= _MAX_RANKS:
        return ranks
    ordered = sorted(ranks, key=lambda each: -each[key])
    half = _MAX_RANKS // 2
    return [*ordered[:half], *ordered[-half:]]


def _share(part_s: float | None, step_s: float) -> str:
    if part_s is None:
        return "unknown"
    return percent(part_s / step_s) if step_s > 0 else "0 %"


def _waited_for(arrivals: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "others waited for it", "came late", "waited itself"):
        table.add_column(name, justify="right")
    order = sorted(range(len(arrivals["rank"])), key=lambda at: -arrivals["waited_for_s"][at])
    for at in order[: _MAX_RANKS // 4]:
        table.add_row(
            f"{arrivals['rank'][at]:,}",
            f"{seconds(arrivals['waited_for_s'][at])} a step",
            f"{percent(arrivals['late_share'][at])} of the time",
            f"{seconds(arrivals['waited_s'][at])} a step",
        )
    return table


def _collectives(rows: list[Result]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("collective", "group"):
        table.add_column(name)
    for name in ("size", "times", "median stay", "transfer", "bandwidth"):
        table.add_column(name, justify="right")
    for each in rows[:_MAX_TRANSFERS]:
        table.add_row(
            # Plain text: names may have brackets, which rich would read as markup.
            Text(printable(each["kind"])),
            Text(printable(each["group"])),
            _bytes(each["num_bytes"]),
            f"{each['num_occurrences']:,}",
            seconds(each["stay_s"]),
            "unknown" if each["transfer_s"] is None else seconds(each["transfer_s"]),
            "unknown"
            if each["bandwidth_bytes_s"] is None
            else f"{_bytes(each['bandwidth_bytes_s'])}/s",
        )
    if len(rows) <= _MAX_TRANSFERS:
        return table
    return Group(table, Text(f"and {len(rows) - _MAX_TRANSFERS:,} more", style="dim"))


def _bytes(number: float | None) -> str:
    if number is None:
        return "unknown"
    size, unit = next((each for each in _UNITS if number >= each[0]), _UNITS[-1])
    return f"{number / size:.3g} {unit}"


def _notes(result: Result) -> list[RenderableType]:
    notes = [printable(each) for each in result["profile"]["notes"]]
    notes += [
        f"step {each['step']:,} is left out: {each['reason']}" for each in result["skipped_steps"]
    ]
    if not notes:
        return []
    shown: list[RenderableType] = [Text("\nNotes", style="bold")]
    shown += [Text(each) for each in notes[:_MAX_NOTES]]
    if len(notes) > _MAX_NOTES:
        shown.append(Text(f"and {len(notes) - _MAX_NOTES:,} more"))
    return shown
