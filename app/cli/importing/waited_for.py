"""Whom the others waited for, of collectives that an import has found one by one."""

from typing import TYPE_CHECKING

from app.cli.files import printable

if TYPE_CHECKING:
    from app.trace.collectives import Collectives

SHOWN = 10
_HEADINGS = ("RANK", "HOST", "LATE", "OTHERS WAITED FOR IT", "IT WAITED")


def text(table: "Collectives") -> str:
    """A table of the ranks that were waited for most; "" where no collective has all its ranks."""
    from app.engine.arrivals.lateness import lateness
    from app.engine.arrivals.occurrences import of_collectives

    found = of_collectives(table, (0,))
    if found is None:
        return ""
    late = lateness(found)
    seats = late.waited_for_s[:, 0].argsort()[::-1][:SHOWN]
    rows: list[tuple[str, ...]] = [("GROUP", *_HEADINGS)]
    for seat in seats.tolist():
        group, place = found.seat_group[seat], found.places[found.seat_rank[seat]]
        rows.append(
            (
                printable(found.groups[group].name),
                str(place.rank),
                printable(place.host or ""),
                f"{late.late[seat, 0]:,.0f} of {late.num_occurrences[group, 0]:,.0f}",
                f"{1e3 * late.waited_for_s[seat, 0]:.4g} ms",
                f"{1e3 * late.waited_s[seat, 0]:.4g} ms",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    first = f"waited for, over {found.num_occurrences:,} collectives that all their ranks logged"
    return "\n".join([first, "", *lines])
