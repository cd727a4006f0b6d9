"""The result of plain torch.profiler files in a terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.output import printable
from app.cli.terminal import plain_table, right_aligned
from app.cli.terminal.blocks import known
from app.cli.terminal.result import causes
from app.formatting import percent, seconds, upper_first, with_times_sign
from app.result.arrivals import ArrivalsRecord
from app.result.profile import ProfileBlock, RankBreakdown, TransfersRecord
from app.result.window_result import WindowResult

_MAX_RANKS = 32
_MAX_TRANSFERS = 12
_MAX_NOTES = 10
# Headings of the parts of a step, and the fields that have their seconds.
_PARTS = {
    "computing": "computing_s",
    "exposed comm.": "communicating_exposed_s",
    "of it waiting": "waiting_s",
    "hidden comm.": "communicating_hidden_s",
    "copying": "copying_s",
    "idle": "idle_s",
}
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B"))


def profile_summary(result: WindowResult) -> RenderableType:
    """Everything about one result, from the headline to the collectives."""
    profile = known(result.profile)
    causes_shown = causes(result)
    if result.findings is None:
        reason = with_times_sign(printable(known(result.ruled_out)[0].reason))
        causes_shown = [Text("\nCauses", style="bold"), Text(f"No verdict: {reason}.")]
    shown = [
        *_headline(result, profile),
        *_refusals(profile),
        *causes_shown,
        Text("\nWhere the time of a step goes, by rank", style="bold"),
        _breakdown(profile.breakdown),
    ]
    if result.arrivals is not None:
        shown += [Text("\nWaited for", style="bold"), _waited_for(result.arrivals)]
    if profile.collectives:
        shown += [Text("\nCollectives, longest first", style="bold")]
        shown += [_collectives(profile.collectives)]
    return Group(*shown, *_notes(result, profile))


def _headline(result: WindowResult, profile: ProfileBlock) -> list[RenderableType]:
    first, *others = profile.headline
    lines = [Text(printable(first), style="bold")]
    lines += [
        Text(f"{upper_first(with_times_sign(printable(finding.sentence)))}.", style="bold")
        for finding in (result.findings or ())[:1]
    ]
    return [*lines, *(Text(printable(sentence)) for sentence in others)]


def _refusals(profile: ProfileBlock) -> list[RenderableType]:
    shown: list[RenderableType] = [
        Text(f"left out: {printable(refusal)}", style="magenta")
        for refusal in profile.refusals[:_MAX_NOTES]
    ]
    if (more := len(profile.refusals) - _MAX_NOTES) > 0:
        shown.append(Text(f"and {more:,} more files are left out"))
    return shown


def _breakdown(ranks: Sequence[RankBreakdown]) -> RenderableType:
    """The ranks that compute longest and shortest where they do not all fit."""
    shown = ranks
    if (more := len(ranks) - _MAX_RANKS) > 0:
        longest_first = sorted(ranks, key=lambda rank: -rank.computing_s)
        half = _MAX_RANKS // 2
        shown = [*longest_first[:half], *longest_first[-half:]]
    rows = (
        (
            f"{rank.rank:,}",
            seconds(rank.step_s),
            *(_share(getattr(rank, field), rank.step_s) for field in _PARTS.values()),
        )
        for rank in shown
    )
    table = plain_table(right_aligned("rank", "step", *_PARTS), rows, header_style="dim")
    if more <= 0:
        return table
    text = f"and {more:,} ranks that compute longer than some and less than others"
    return Group(table, Text(text, style="dim"))


def _share(part_s: float | None, step_s: float) -> str:
    if part_s is None:
        return "unknown"
    return percent(part_s / step_s) if step_s > 0 else "0 %"


def _waited_for(arrivals: ArrivalsRecord) -> Table:
    waited_for_s = [known(waited_s) for waited_s in arrivals.waited_for_s]
    order = sorted(range(len(waited_for_s)), key=lambda at: -waited_for_s[at])
    rows = (
        (
            f"{arrivals.rank[at]:,}",
            f"{seconds(waited_for_s[at])} a step",
            f"{percent(known(arrivals.late_share[at]))} of the time",
            f"{seconds(known(arrivals.waited_s[at]))} a step",
        )
        for at in order[: _MAX_RANKS // 4]
    )
    columns = right_aligned("rank", "others waited for it", "came late", "waited itself")
    return plain_table(columns, rows, header_style="dim")


def _collectives(rows: Sequence[TransfersRecord]) -> RenderableType:
    cells = (
        (
            # Plain text: names may have brackets, which rich would read as markup.
            Text(printable(row.kind)),
            Text(printable(row.group)),
            _bytes(row.num_bytes),
            f"{row.num_occurrences:,}",
            seconds(row.stay_s),
            "unknown" if row.transfer_s is None else seconds(row.transfer_s),
            _bytes(row.bandwidth_bytes_s, "/s"),
        )
        for row in rows[:_MAX_TRANSFERS]
    )
    numbers = right_aligned("size", "times", "median stay", "transfer", "bandwidth")
    table = plain_table(["collective", "group", *numbers], cells, header_style="dim")
    if len(rows) <= _MAX_TRANSFERS:
        return table
    return Group(table, Text(f"and {len(rows) - _MAX_TRANSFERS:,} more", style="dim"))


def _bytes(number: float | None, per: str = "") -> str:
    if number is None:
        return "unknown"
    size, unit = next((unit for unit in _UNITS if number >= unit[0]), _UNITS[-1])
    return f"{number / size:.3g} {unit}{per}"


def _notes(result: WindowResult, profile: ProfileBlock) -> list[RenderableType]:
    notes = [printable(note) for note in profile.notes]
    notes += [f"step {skip.step:,} is left out: {skip.reason}" for skip in result.skipped_steps]
    if (more := len(notes) - _MAX_NOTES) > 0:
        notes[_MAX_NOTES:] = [f"and {more:,} more"]
    return [Text("\nNotes", style="bold"), *map(Text, notes)] if notes else []
