"""Causes as they are shown in a terminal: what was found, and what was looked at and ruled out."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.charts.arrivals import remarks
from app.cli.files import printable

Result = dict[str, Any]


def causes(result: Result) -> list[RenderableType]:
    """A sentence for each finding, most costly first, and a line for each cause that is none."""
    found, others = result["findings"], result["ruled_out"]
    if others is None:
        return []
    return [
        Text("\nCauses", style="bold"),
        *(_found(result, found) if found is not None else [_withheld()]),
        Text("\nLooked at and ruled out", style="bold"),
        _ruled_out(others),
    ]


def _found(result: Result, findings: list[Result]) -> list[Text]:
    if not findings:
        return [Text("No known cause fits." if remarks(result) else "None found.")]
    return [Text(f"{each['cause']}: {printable(each['sentence'])}.") for each in findings]


def _withheld() -> Text:
    return Text(
        "Withheld: what the steps' own operations do not explain cannot be put down to any."
    )


def _ruled_out(causes: list[Result]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("cause")
    table.add_column("reason", style="dim")
    for each in causes:
        doubt = "cannot tell: " if each["insufficient_evidence"] else ""
        # Plain text: a reason may name hosts, whose brackets rich would read as markup.
        table.add_row(each["cause"], Text(f"{doubt}{printable(each['reason'])}"))
    return table
