"""`paceline token`: create, list and revoke access tokens, directly in the store."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DataDir
from app.cli.store_access import audit_action, open_store
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.store.tokens import TokenRecord

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke access tokens.")

_DAY_S = 86_400.0
_Project = Annotated[str, typer.Option(help="Project of the token; created if it is new.")]


@app.command()
def create(
    scope: Annotated[
        list[str], typer.Option(help="ingest, read, write or admin; several separated by commas.")
    ],
    project: _Project = "default",
    job: Annotated[
        str | None, typer.Option(help="Restrict the token to this job; only with scope ingest.")
    ] = None,
    expires_days: Annotated[
        float | None, typer.Option(min=0, max=3650, help="Days until it expires. Default: never.")
    ] = None,
    name: Annotated[str, typer.Option(help="A note on where it is used.")] = "",
    data_dir: DataDir = None,
) -> None:
    """Create a token and print it. It cannot be shown again: only a hash is stored.

    To replace a token, create the new one first, then revoke the old one.

    Example: paceline token create --project research --scope ingest --expires-days 90
    """
    from app.store import tokens

    if expires_days == 0:
        raise InvalidRequest("--expires-days 0: the token would expire at once; give more")
    names = [name.strip() for listed in scope for name in listed.split(",")]
    now_s = time.time()
    expires_s = None if expires_days is None else now_s + expires_days * _DAY_S
    wanted = tokens.NewToken(project, name, tokens.checked_scopes(names), job, expires_s)
    with open_store(data_dir) as (store, _), store.write() as conn:
        record, text = tokens.create(conn, wanted, now_s=now_s)
        detail = {"name": name, "scopes": list(record.scopes), "job": job}
        audit_action(conn, project, "token.create", record.token_id, **detail)
    typer.echo(text)


@app.command(name="list")
def list_(
    project: Annotated[
        str | None, typer.Option(help="Only tokens of this project. Default: all.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List tokens, including revoked ones. Secrets are not stored and not shown.

    Example: paceline token list --project research
    """
    from app.store import tokens

    with open_store(data_dir) as (store, _), store.read() as conn:
        records = tokens.all_tokens(conn)
    rows = [_row(record) for record in records if project in (None, record.project)]
    heading = ("ID", "PROJECT", "SCOPES", "JOB", "STATE", "LAST USED (UTC)", "NAME")
    widths = [max(len(row[at]) for row in [heading, *rows]) for at in range(len(heading))]
    for row in [heading, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the token, as shown by list.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a token; takes effect in every process within 5 s.

    Example: paceline token revoke x7Kq2mZ0aB
    """
    from app.store import tokens

    with open_store(data_dir) as (store, _), store.write() as conn:
        record = tokens.find(conn, token_id)
        if record is None:
            raise InvalidRequest(f"no token {token_id!r}: paceline token list shows them all")
        if tokens.revoke(conn, record.project, token_id, now_s=time.time()):
            audit_action(conn, record.project, "token.revoke", token_id)
    typer.echo(f"revoked: {token_id} ({record.name or 'without a name'}) of {record.project}")


def _row(record: "TokenRecord") -> tuple[str, ...]:
    return (
        record.token_id,
        record.project,
        ",".join(record.scopes),
        record.job or "all",
        _state(record),
        "never" if record.last_used_s is None else _utc(record.last_used_s),
        record.name,
    )


def _state(record: "TokenRecord") -> str:
    if record.revoked_s is not None:
        return "revoked"
    if record.expires_s is None:
        return "good"
    word = "good until" if record.is_good(time.time()) else "over since"
    return f"{word} {_utc(record.expires_s)}"


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")
