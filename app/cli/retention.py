"""Commands on how long things are kept."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DataDir

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store.retention import Keep

app = typer.Typer(no_args_is_help=True, help="How long operations and results are kept.")

Days = Annotated[
    float | None, typer.Option(min=1, help="Days; left out: as long as the service's settings say.")
]


@app.command()
def run(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove what is older than its project keeps it, as the consumers do once an hour.

    Example: paceline retention run --dry-run
    """
    from app.cli.opened_store import opened_store
    from app.store import retention

    ask = retention.count if dry_run else retention.sweep
    found: Counter[tuple[str, str]] = Counter()
    with opened_store(data_dir) as (store, settings):
        for batch in ask(store, _usual(settings)):
            found[batch.project, batch.kind] += batch.number
    for (project, kind), number in found.items():
        typer.echo(f"{project}: {number} {kind} {'to remove' if dry_run else 'removed'}")
    if not found:
        typer.echo("nothing is old enough")


@app.command()
def show(data_dir: DataDir = None) -> None:
    """How long each project keeps what it has.

    Example: paceline retention show
    """
    from app.cli.opened_store import opened_store
    from app.store import retention

    with opened_store(data_dir) as (store, settings), store.read() as conn:
        found = retention.policies(conn, _usual(settings))
    for policy in found:
        days = (policy.keep.raw_days, policy.keep.results_days)
        words = [_days(each, own) for each, own in zip(days, policy.has_own, strict=True)]
        typer.echo(f"{policy.project}: operations {words[0]}, results {words[1]}")


@app.command("set")
def set_(
    project: Annotated[str, typer.Option(help="The project's id.")],
    raw_days: Days = None,
    results_days: Days = None,
    data_dir: DataDir = None,
) -> None:
    """Keep a project's operations and results for other than the usual time.

    Example: paceline retention set --project research --raw-days 60
    """
    from app.cli.audited import note
    from app.cli.opened_store import opened_store
    from app.store import retention

    days = {"raw_days": raw_days, "results_days": results_days}
    with opened_store(data_dir) as (store, _), store.write() as conn:
        retention.set_own(conn, project, **days)
        note(conn, project, "retention.set", project, **days)
    show(data_dir)


def _usual(settings: "Settings") -> "Keep":
    from app.store.retention import Keep

    return Keep(settings.keep_raw_days, settings.keep_results_days)


def _days(number: float, is_own: bool) -> str:
    return f"{number:g} days{'' if is_own else ' (as usual)'}"
