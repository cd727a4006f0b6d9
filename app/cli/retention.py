"""`paceline retention`: how long data is kept, and how much of it."""

from collections import Counter
from typing import Annotated

import typer

from app.cli.options import DataDir
from app.cli.store_access import audit_action, open_store

app = typer.Typer(no_args_is_help=True, help="How much is kept, and how long.")

Days = Annotated[float | None, typer.Option(min=1, help="Days.")]


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
    from app.store import retention
    from app.store.shrinking.dead_rows import vacuum_tables
    from app.store.shrinking.thinning import ThinningDays

    ask = retention.count_old if dry_run else retention.sweep
    removed: Counter[tuple[str, str]] = Counter()
    with open_store(data_dir) as (store, settings):
        thinning = ThinningDays(
            settings.thin_steps_days, settings.thin_windows_days, settings.thin_hours_days
        )
        for batch in ask(store, settings.retention, thinning):
            removed[batch.project, batch.kind] += batch.number
        if not dry_run:
            vacuum_tables(store)
    for (project, kind), number in removed.items():
        typer.echo(f"{project}: {number} {kind} {'to remove' if dry_run else 'removed'}")
    if not removed:
        typer.echo("nothing to remove")


@app.command()
def show(data_dir: DataDir = None) -> None:
    """Show how long each project keeps its data, how much it has, and its quota.

    Example: paceline retention show
    """
    from app.store import retention

    with open_store(data_dir) as (store, settings), store.read() as conn:
        for policy in retention.policies(conn, settings.retention):
            limits = policy.limits
            days = zip((limits.raw_days, limits.results_days), policy.is_own, strict=False)
            raw, results = (f"{number:g} days{_default(own)}" for number, own in days)
            used_gb = retention.stored_bytes(conn, policy.project) / 1e9
            most = "no quota"
            if limits.max_gb is not None:
                most = f"of at most {limits.max_gb:g} GB{_default(policy.is_own[2])}"
            typer.echo(
                f"{policy.project}: operations {raw}, results {results}; "
                f"windows take {used_gb:.3g} GB, {most}"
            )


@app.command("set")
def set_(
    project: Annotated[str, typer.Option(help="The project's id.")],
    raw_days: Days = None,
    results_days: Days = None,
    max_gb: Annotated[
        float | None, typer.Option(min=0.001, help="GB that its windows may take in the database.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Set how long a project's operations and results are kept, and how much of them.

    What is left out stays as it is; without any option all go back to the service's settings.

    Example: paceline retention set --project research --raw-days 60
    """
    from app.store import retention

    options = {"raw_days": raw_days, "results_days": results_days, "max_gb": max_gb}
    given: dict[str, float | None] = {
        name: value for name, value in options.items() if value is not None
    }
    with open_store(data_dir) as (store, _), store.write() as conn:
        limits = retention.project_limits(conn, project) | given if given else options
        retention.set_project_limits(conn, project, **limits)
        audit_action(conn, project, "retention.set", project, **limits)
    show(data_dir)


def _default(is_own: bool) -> str:
    return "" if is_own else " (default)"
