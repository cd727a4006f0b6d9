"""`paceline secrets`: the keys that encrypt receivers' secrets in the database."""

import typer

from app.cli.options import DataDir
from app.errors import StartUpFailed

app = typer.Typer(
    no_args_is_help=True, help="Keys that encrypt receivers' addresses and secrets in the database."
)


@app.command("new-key")
def new_key() -> None:
    """Print a new random key, for PACELINE_SECRET_KEY or a line of PACELINE_SECRET_KEY_FILE.

    Example: paceline secrets new-key > secret.key
    """
    from app.store.sealing import new_key as make

    typer.echo(make())


@app.command()
def show(data_dir: DataDir = None) -> None:
    """Show how many secrets are encrypted, with which keys, and whether these keys are here.

    Example: paceline secrets show
    """
    from app.cli.store_access import open_store
    from app.store import resealing

    with open_store(data_dir) as (store, settings), store.read() as conn:
        counts = resealing.count(conn)
        newest = settings.secret_keys().newest_id
    typer.echo("no secret key is set" if newest is None else f"newest key: {newest}")
    for name, number in sorted(counts.by_key.items()):
        typer.echo(f"encrypted with key {name}: {number}")
    typer.echo(f"not encrypted: {counts.plain}")
    typer.echo(f"not readable, as their key is not here: {counts.locked}")


@app.command()
def rotate(data_dir: DataDir = None) -> None:
    """Encrypt every stored secret with the newest key; the service may be running.

    First put the new key in front of the old one, for API and consumers, and restart them. Then run
    this. The old key may go once `secrets show` names it no more.

    Example: PACELINE_SECRET_KEY=NEW,OLD paceline secrets rotate
    """
    from app.cli.store_access import open_store
    from app.store import resealing

    with open_store(data_dir) as (store, _):
        result = resealing.reseal(store)
    typer.echo(f"encrypted with the newest key: {result.done}")
    if result.locked:
        raise StartUpFailed(
            f"{result.locked} secrets are unchanged, as their key is not here: "
            "add it behind the newest, and run this again"
        )
