"""Commands on the store: migrate, backup, restore, and the keys that encrypt its secrets."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DataDir
from app.cli.store_access import check_store_exists, locked_secrets, open_store
from app.errors import StartUpFailed


def migrate(data_dir: DataDir = None) -> None:
    """Migrate the database to this version's tables; does nothing if it is up to date.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline migrate
    """
    from app.settings import load_settings
    from app.store import migrations

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    if (complaint := locked_secrets(settings)) is not None:
        typer.echo(complaint)
    typer.echo("the database is up to date")


def backup(
    file: Annotated[Path, typer.Argument(help="The .zip file to write; it must not exist.")],
    data_dir: DataDir = None,
) -> None:
    """Write everything that is stored to one file; the service may be running.

    Keep the secret key somewhere else: without it nobody can read the receivers' secrets in it.

    Example: paceline backup paceline-2026-11-21.zip
    """
    from app.settings import load_settings
    from app.store.backup import backup as write
    from app.store.database import Store

    settings = load_settings(data_dir=data_dir)
    check_store_exists(settings)
    with closing(Store(settings.store_url)) as store:
        write(store, file)
    typer.echo(f"written: {file}")


def restore(
    file: Annotated[Path, typer.Argument(exists=True, help="A file written by backup.")],
    data_dir: DataDir = None,
) -> None:
    """Load a backup into an empty database, SQLite or PostgreSQL, whichever it came from.

    Receivers' secrets in it are encrypted: give the service the secret key that it had then.

    Example: PACELINE_DATABASE_URL=postgresql://... paceline restore paceline-2026-11-21.zip
    """
    from app.settings import load_settings
    from app.store import migrations
    from app.store.backup import restore as read
    from app.store.database import Store

    settings = load_settings(data_dir=data_dir)
    migrations.migrate(settings.store_url)
    with closing(Store(settings.store_url, keys=settings.secret_keys())) as store:
        read(store, file)
    typer.echo(f"restored from {file}")
    if (complaint := locked_secrets(settings)) is not None:
        typer.echo(complaint)


secrets_app = typer.Typer(
    no_args_is_help=True, help="Keys that encrypt receivers' addresses and secrets in the database."
)


@secrets_app.command("new-key")
def new_key() -> None:
    """Print a new random key, for PACELINE_SECRET_KEY or a line of PACELINE_SECRET_KEY_FILE.

    Example: paceline secrets new-key > secret.key
    """
    from app.store.credentials.sealing import new_key as make

    typer.echo(make())


@secrets_app.command()
def show(data_dir: DataDir = None) -> None:
    """Show how many secrets are encrypted, with which keys, and whether these keys are here.

    Example: paceline secrets show
    """
    from app.store.credentials import resealing

    with open_store(data_dir) as (store, settings), store.read() as conn:
        counts = resealing.count(conn)
        newest = settings.secret_keys().newest_id
    typer.echo("no secret key is set" if newest is None else f"newest key: {newest}")
    for name, number in sorted(counts.by_key.items()):
        typer.echo(f"encrypted with key {name}: {number}")
    typer.echo(f"not readable, as their key is not here: {counts.locked}")


@secrets_app.command()
def rotate(data_dir: DataDir = None) -> None:
    """Encrypt every stored secret with the newest key; the service may be running.

    First put the new key in front of the old one, for API and consumers, and restart them. Then run
    this. The old key may go once `secrets show` names it no more.

    Example: PACELINE_SECRET_KEY=NEW,OLD paceline secrets rotate
    """
    from app.store.credentials import resealing

    with open_store(data_dir) as (store, _):
        result = resealing.reseal(store)
    typer.echo(f"encrypted with the newest key: {result.done}")
    if result.locked:
        raise StartUpFailed(
            f"{result.locked} secrets are unchanged, as their key is not here: "
            "add it behind the newest, and run this again"
        )
