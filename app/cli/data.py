"""Commands on the store: migrate, backup, restore."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DataDir


def migrate(data_dir: DataDir = None) -> None:
    """Migrate the database to this version's tables; does nothing if it is up to date.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline migrate
    """
    from app.cli.store_access import seal_plain_secrets
    from app.settings import load_settings
    from app.store import migrations

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    for sentence in seal_plain_secrets(settings):
        typer.echo(sentence)
    typer.echo("the database is up to date")


def backup(
    file: Annotated[Path, typer.Argument(help="The .zip file to write; it must not exist.")],
    data_dir: DataDir = None,
) -> None:
    """Write everything that is stored to one file; the service may be running.

    Keep the secret key somewhere else: without it nobody can read the receivers' secrets in it.

    Example: paceline backup paceline-2026-11-21.zip
    """
    from app.cli.store_access import check_store_exists
    from app.settings import load_settings
    from app.store.backup import backup as write
    from app.store.database import Store

    settings = load_settings(data_dir=data_dir)
    check_store_exists(settings)
    store = Store(settings.store_url)
    try:
        write(store, file)
    finally:
        store.close()
    typer.echo(f"written: {file}")


def restore(
    file: Annotated[Path, typer.Argument(exists=True, help="A file written by backup.")],
    data_dir: DataDir = None,
) -> None:
    """Load a backup into an empty database, SQLite or PostgreSQL, whichever it came from.

    Receivers' secrets in it are encrypted: give the service the secret key that it had then.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline restore paceline-2026-11-21.zip
    """
    from app.cli.store_access import seal_plain_secrets
    from app.settings import load_settings
    from app.store import migrations
    from app.store.backup import restore as read
    from app.store.database import Store

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    store = Store(settings.store_url, keys=settings.secret_keys())
    try:
        read(store, file)
    finally:
        store.close()
    typer.echo(f"restored from {file}")
    for sentence in seal_plain_secrets(settings):
        typer.echo(sentence)
