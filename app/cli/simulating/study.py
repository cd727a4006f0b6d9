"""`paceline simulate --straggler-study`: the law by which synchronous jobs lose time."""

from pathlib import Path
from typing import Any

from rich.table import Table

from app.charts.base.theme import LIGHT
from app.cli.html_report import chart_page
from app.cli.output import written_whole
from app.cli.simulating.straggler_law_chart import straggler_law
from app.synth.straggler_law import TAILS, WORKERS, LogNormalTail, ParetoTail, Tail

# Characters that the table takes, or a few more.
WIDTH = 80


def straggler_study() -> dict[str, Any]:
    """Efficiency by number of workers and heaviness of the tail, for JSON."""
    return {
        "schema": 1,
        "efficiency": "mean / expected largest",
        "workers": list(WORKERS),
        "tails": [_tail_fields(tail) for tail in TAILS],
    }


def study_table() -> Table:
    """The same for a terminal: a row for each number of workers."""
    title = "efficiency = mean / expected largest, in %"
    table = Table(box=None, pad_edge=False, collapse_padding=True, title=title)
    table.add_column("\nworkers", justify="right", no_wrap=True)
    for tail in TAILS:
        table.add_column(tail.label.replace(" ", "\n"), justify="right", no_wrap=True)
    for num_workers in WORKERS:
        shares = (f"{100 * tail.efficiency(num_workers):.1f}" for tail in TAILS)
        table.add_row(f"{num_workers:,}", *shares)
    return table


def write_chart(path: Path) -> None:
    """Write the chart as a page that needs no network.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    figure = straggler_law(TAILS, WORKERS, theme=LIGHT)
    with written_whole(path) as file:
        file.write(chart_page("The straggler law", figure, LIGHT).encode())


def _tail_fields(tail: Tail) -> dict[str, Any]:
    named: dict[str, Any] = {"kind": "log-normal" if isinstance(tail, LogNormalTail) else "pareto"}
    named["cv"] = tail.cv if isinstance(tail, LogNormalTail) else None
    named["shape"] = tail.shape if isinstance(tail, ParetoTail) else None
    named["efficiency"] = [tail.efficiency(each) for each in WORKERS]
    return named
