"""Describes an import: its size, missing data, and the ranks most waited for."""

from typing import TYPE_CHECKING

from app.cli.output import printable
from app.formatting import plural

if TYPE_CHECKING:
    from app.trace.collectives import Collectives
    from app.trace.job import Job
    from app.trace.readers.importing import ImportSummary, MissingData


def list_formats() -> str:
    """Every format, one per line."""
    from app.trace.readers.registry import FORMATS, SCORE_FORMATS
    from app.trace.readers.scores.score_report import NO_WHAT_IF

    width = max(len(name) for name in (*FORMATS, *SCORE_FORMATS))
    lines = [f"{each.name:{width}}  {each.what}" for each in FORMATS.values()]
    lines += [f"{each.name:{width}}  {each.what} ({NO_WHAT_IF})" for each in SCORE_FORMATS.values()]
    return "\n".join(lines)


def describe_import(described: "ImportSummary", job: "Job") -> str:
    """The job and sizes of the files, and the missing data."""
    sizes = job.parallelism
    axes = (("dp", sizes.dp_size), ("pp", sizes.pp_size), ("tp", sizes.tp_size))
    more = (("vpp", sizes.vpp_size), ("dsp", sizes.dsp_size), ("ep", sizes.ep_size))
    named = [f"{name} {size}" for name, size in (*axes, *(each for each in more if each[1] > 1))]
    run = f", run {described.run_key}" if described.run_key is not None else ""
    labels = "".join(f", {key} {value}" for key, value in described.labels.items())
    counts = (
        plural(described.num_ops, "operation"),
        plural(len(described.steps), "step"),
        plural(len(described.places), "worker"),
    )
    first = f"{job.name}{run}{labels}: {', '.join(counts)} ({', '.join(named)})"
    return "\n".join(map(printable, [first, *describe_missing(described.missing)]))


def describe_missing(missing: "tuple[MissingData, ...]") -> list[str]:
    """The missing data, one item per line."""
    if not missing:
        return []
    return ["The files lack:", *(f"- {each.what}: {each.cost}" for each in missing)]


MAX_SHOWN_RANKS = 10
_HEADINGS = ("RANK", "HOST", "LATE", "OTHERS WAITED FOR IT", "IT WAITED")


def waits_table(table: "Collectives") -> str:
    """A table of the ranks most waited for; "" if no collective has all its ranks."""
    from app.engine.arrivals.lateness import lateness_of
    from app.engine.arrivals.occurrences import occurrences_of_table

    found = occurrences_of_table(table, (0,))
    if found is None:
        return ""
    late = lateness_of(found)
    members = late.waited_for_s[:, 0].argsort()[::-1][:MAX_SHOWN_RANKS]
    rows: list[tuple[str, ...]] = [("GROUP", *_HEADINGS)]
    for member in members.tolist():
        group, place = found.member_group[member], found.places[found.member_rank[member]]
        rows.append(
            (
                printable(found.groups[group].name),
                str(place.rank),
                printable(place.host or ""),
                f"{late.late[member, 0]:,.0f} of {late.num_occurrences[group, 0]:,.0f}",
                f"{1e3 * late.waited_for_s[member, 0]:.4g} ms",
                f"{1e3 * late.waited_s[member, 0]:.4g} ms",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    first = f"waited for, over {found.num_occurrences:,} collectives that all their ranks logged"
    return "\n".join([first, "", *lines])
