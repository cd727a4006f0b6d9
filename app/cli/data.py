"""Commands on the store: migrate, backup, restore."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DataDir


def migrate(data_dir: DataDir = None) -> None:
    """Bring the database to this version's tables; does nothing where that is done.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline migrate
    """
    from app.settings import load_settings
    from app.store import migrate as migrations

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    typer.echo("the database is up to date")


def backup(
    file: Annotated[Path, typer.Argument(help="A .zip that is not there yet.")],
    data_dir: DataDir = None,
) -> None:
    """Write all that is stored into one file, while everything runs.

    Example: paceline backup paceline-2026-11-21.zip
    """
    from app.cli.opened_store import check_there_is_one
    from app.settings import load_settings
    from app.store.backup import backup as write
    from app.store.engine import Store

    settings = load_settings(data_dir=data_dir)
    check_there_is_one(settings)
    store = Store(settings.store_url)
    try:
        write(store, file)
    finally:
        store.close()
    typer.echo(f"written: {file}")


def restore(
    file: Annotated[Path, typer.Argument(exists=True, help="A file that backup wrote.")],
    data_dir: DataDir = None,
) -> None:
    """Read a backup into an empty database; SQLite and PostgreSQL take each other's.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline restore paceline-2026-11-21.zip
    """
    from app.settings import load_settings
    from app.store import migrate as migrations
    from app.store.backup import restore as read
    from app.store.engine import Store

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    store = Store(settings.store_url)
    try:
        read(store, file)
    finally:
        store.close()
    typer.echo(f"restored from {file}")
