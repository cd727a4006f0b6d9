"""`paceline retention`: how long data is kept."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DataDir

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store.retention import RetentionDays
    from app.store.shrinking.thinning import ThinningDays

app = typer.Typer(no_args_is_help=True, help="How long operations and results are kept.")

Days = Annotated[float | None, typer.Option(min=1, help="Days. Default: the service's setting.")]


@app.command()
def run(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove and thin data as old as the settings say, as the consumers do once an hour.

    Example: paceline retention run --dry-run
    """
    from app.cli.store_access import open_store
    from app.store import retention

    ask = retention.count_old if dry_run else retention.sweep
    found: Counter[tuple[str, str]] = Counter()
    with open_store(data_dir) as (store, settings):
        for batch in ask(store, _default_keep(settings), _thinning(settings)):
            found[batch.project, batch.kind] += batch.number
    for (project, kind), number in found.items():
        typer.echo(f"{project}: {number} {kind} {'to remove' if dry_run else 'removed'}")
    if not found:
        typer.echo("nothing to remove")


@app.command()
def show(data_dir: DataDir = None) -> None:
    """Show how long each project keeps its data.

    Example: paceline retention show
    """
    from app.cli.store_access import open_store
    from app.store import retention

    with open_store(data_dir) as (store, settings), store.read() as conn:
        found = retention.policies(conn, _default_keep(settings))
    for policy in found:
        days = (policy.days.raw_days, policy.days.results_days)
        words = [_days(each, own) for each, own in zip(days, policy.is_own, strict=True)]
        typer.echo(f"{policy.project}: operations {words[0]}, results {words[1]}")


@app.command()
def compact(data_dir: DataDir = None) -> None:
    """Rewrite a SQLite file without free space; once for files of older releases.

    Stop the service first. From then on the file shrinks by itself when data is removed.

    Example: paceline retention compact
    """
    from app.cli.store_access import open_store
    from app.store.shrinking.file_size import rewrite_file

    with open_store(data_dir) as (store, _):
        before_bytes, after_bytes = rewrite_file(store)
    typer.echo(f"{before_bytes / 1e6:,.0f} MB before, {after_bytes / 1e6:,.0f} MB now")


@app.command("set")
def set_(
    project: Annotated[str, typer.Option(help="The project's id.")],
    raw_days: Days = None,
    results_days: Days = None,
    data_dir: DataDir = None,
) -> None:
    """Set how long a project's operations and results are kept.

    Example: paceline retention set --project research --raw-days 60
    """
    from app.cli.store_access import audit_action, open_store
    from app.store import retention

    days = {"raw_days": raw_days, "results_days": results_days}
    with open_store(data_dir) as (store, _), store.write() as conn:
        retention.set_project_days(conn, project, **days)
        audit_action(conn, project, "retention.set", project, **days)
    show(data_dir)


def _default_keep(settings: "Settings") -> "RetentionDays":
    from app.store.retention import RetentionDays

    return RetentionDays(settings.keep_raw_days, settings.keep_results_days)


def _thinning(settings: "Settings") -> "ThinningDays":
    from app.store.shrinking.thinning import ThinningDays

    return ThinningDays(
        settings.thin_steps_days, settings.thin_windows_days, settings.thin_hours_days
    )


def _days(number: float, is_own: bool) -> str:
    return f"{number:g} days{'' if is_own else ' (default)'}"
