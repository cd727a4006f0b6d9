"""`python -m benchmarks figures`: measures the rows of docs/benchmarks.md, and writes them."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from app.errors import PacelineError
from benchmarks.figures import accuracy, speed
from benchmarks.figures.measurement import PAGE, ROOT, Measured, Options, commit, machine, today
from benchmarks.figures.tables import Cells, rewritten

MAX_LOAD = 0.5  # processes that run beside a measurement, on average over a minute
ROWS: Mapping[str, Callable[[Options], Measured]] = {**speed.ROWS, **accuracy.ROWS}


def main(arguments: Sequence[str]) -> int:
    """Print the measured rows as JSON; 1 where a row could not be measured."""
    options = _parser().parse_args(arguments)
    if not (options.shared / "traces").is_dir():
        print(f"{options.shared}: has no traces/: name the folder with --shared", file=sys.stderr)
        return 2
    names = options.only or [*speed.ROWS, *(_short_accuracy() if options.accuracy else ())]
    if os.getloadavg()[0] > MAX_LOAD:
        print("figures: other processes use this machine; its speed is not shown", file=sys.stderr)
    taken = {"machine": machine(), "commit": commit(), "date": today()}
    found: dict[str, Measured] = {}

    def keep(name: str, row: Measured) -> None:
        found[name] = row
        if options.write:  # at once: a later row may take minutes
            rewrite(PAGE, {name: (*row.cells, *taken.values())})

    wanted = {name: ROWS[name] for name in names}
    failed = measure(wanted, Options(options.shared.resolve(), options.peer_python), keep)
    rows = {name: asdict(row) for name, row in found.items()}
    print(json.dumps({**taken, "rows": rows, "failed": failed}, indent=1))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks figures", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="put the rows into docs/benchmarks.md; others stay"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(ROWS),
        metavar="ROW",
        help=f"only this row, or several times: {', '.join(ROWS)}",
    )
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help=f"rows of accuracy too, but for {' and '.join(sorted(accuracy.LONG))} (name these)",
    )
    parser.add_argument("--shared", type=Path, default=ROOT / ".." / "shared", help="recordings")
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PYTHON",
        help="an interpreter with pandas, pyarrow and HolisticTraceAnalysis, where this has none",
    )
    return parser


def _short_accuracy() -> list[str]:
    return [name for name in accuracy.ROWS if name not in accuracy.LONG]


def measure(
    wanted: Mapping[str, Callable[[Options], Measured]],
    options: Options,
    keep: Callable[[str, Measured], None],
) -> dict[str, str]:
    """Measure rows one after the other; the reasons of those that cannot be measured, by name."""
    failed: dict[str, str] = {}
    for number, (name, row) in enumerate(wanted.items(), start=1):
        print(f"figures: {name} ({number} of {len(wanted)})", file=sys.stderr, flush=True)
        try:
            keep(name, row(options))
        except (PacelineError, OSError, LookupError, ValueError) as error:
            failed[name] = str(error) or type(error).__name__
            print(f"figures: {name}: {error}; its row stays as it was", file=sys.stderr)
    return failed


def rewrite(page: Path, rows: Mapping[str, Cells]) -> None:
    """Write the page again with these rows in its tables.

    Raises:
        InvalidRequest: the page lacks the markers of the tables.
    """
    text = rewritten(page.read_text(), (speed.TABLE, accuracy.TABLE), rows)
    page.write_text(text)
