"""`paceline dead-letters`: queue entries that could not be processed."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.options import DataDir
from app.cli.output import printable
from app.cli.store_access import open_store, rows_of_pages
from app.errors import PacelineError

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store.database import Store
    from app.store.dead_letters import LetterSummary
    from app.trace.ops import OpTypes

app = typer.Typer(
    no_args_is_help=True, help="Show, replay or drop queue entries that could not be processed."
)

Ids = Annotated[list[int] | None, typer.Argument(help="Numbers, as shown by list.")]
All = Annotated[bool, typer.Option("--all", help="Every letter in state dead.")]


@app.command("list")
def list_(
    state: Annotated[
        Literal["dead", "replayed", "dropped", "any"], typer.Option(help="Only in this state.")
    ] = "dead",
    data_dir: DataDir = None,
) -> None:
    """List dead letters and why they failed, the oldest first.

    Example: paceline dead-letters list --state any
    """
    with open_store(data_dir) as (store, _):
        lines = [_line(letter) for letter in _summaries(store, None if state == "any" else state)]
    for line in lines or ["no dead letters"]:
        typer.echo(line)


@app.command()
def show(
    letter_id: Annotated[int, typer.Argument(help="Number, as shown by list.")],
    rows: Annotated[int, typer.Option(min=0, help="Number of operations to show.")] = 10,
    data_dir: DataDir = None,
) -> None:
    """Show one letter: why it failed, and its content as far as it is readable.

    Example: paceline dead-letters show 7
    """
    from app.store import dead_letters, jobs, runs

    with open_store(data_dir) as (store, _), store.read() as conn:
        summary = dead_letters.summary(conn, letter_id)
        letter = dead_letters.get(conn, letter_id)
        run = letter.job_id, letter.epoch or 0
        registration = jobs.registration(conn, *run) if runs.has_run(conn, *run) else None
    typer.echo(_line(summary))
    typer.echo(f"received {_utc(letter.received_s)}, {summary.size_bytes} bytes")
    op_types = registration.op_types if registration else None
    for line in _text(letter.body, op_types, max_rows=rows):
        typer.echo(printable(line))


@app.command()
def replay(letter_ids: Ids = None, everything: All = False, data_dir: DataDir = None) -> None:
    """Put letters into the event queue again, after their cause is fixed.

    Operations count once, however often a letter is replayed.

    Example: paceline dead-letters replay --all
    """
    with open_store(data_dir) as (store, settings):
        wanted = _selected_ids(store, letter_ids, everything)
        asyncio.run(_replay(store, settings, wanted))
    typer.echo(f"{len(wanted)} replayed")


@app.command()
def drop(
    letter_ids: Ids = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Mark letters as dropped; they stay readable until retention removes them.

    Example: paceline dead-letters drop 7 8
    """
    from app.store import dead_letters

    with open_store(data_dir) as (store, _):
        wanted = _selected_ids(store, letter_ids, everything)
        if wanted and not yes:
            typer.confirm(f"drop {len(wanted)} dead letters?", abort=True)
        with store.write() as conn:
            for letter_id in wanted:
                dead_letters.mark(conn, letter_id, "dropped", now_s=time.time())
    typer.echo(f"{len(wanted)} dropped")


async def _replay(store: "Store", settings: "Settings", wanted: list[int]) -> None:
    from app.ingest.embedded import running_url
    from app.ingest.redis.queue import RedisWriter
    from app.store import dead_letters, runs

    url = settings.redis_url or running_url(settings.data_dir)
    writer = RedisWriter(url, settings.shards, wait_replicas=settings.wait_replicas)
    try:
        for letter_id in wanted:
            with store.read() as conn:
                letter = dead_letters.get(conn, letter_id)
            await writer.append(letter.job_id, letter.body)
            # After the append: a crash in between replays it twice, which counts once.
            with store.write() as conn:
                dead_letters.mark(conn, letter_id, "replayed", now_s=time.time())
                runs.add_to_total(conn, "ops_replayed", letter.num_ops)
    finally:
        await writer.close()


def _selected_ids(store: "Store", letter_ids: list[int] | None, everything: bool) -> list[int]:
    from app.store import dead_letters

    if everything == bool(letter_ids):
        raise typer.BadParameter("give the letters' numbers, or --all")
    if everything:
        return [letter.letter_id for letter in _summaries(store, "dead")]
    with store.read() as conn:
        return [dead_letters.summary(conn, letter_id).letter_id for letter_id in letter_ids or []]


def _summaries(
    store: "Store", state: Literal["dead", "replayed", "dropped"] | None
) -> "Iterator[LetterSummary]":
    from app.store import dead_letters

    return rows_of_pages(
        store, lambda conn, cursor: dead_letters.page(conn, state=state, cursor=cursor)
    )


def _line(letter: "LetterSummary") -> str:
    state = "" if letter.state == "dead" else f" ({letter.state})"
    epoch = "" if letter.epoch is None else f" epoch {letter.epoch}"
    ops = f"{letter.num_ops} operations" if letter.num_ops else "unreadable"
    return printable(
        f"{letter.letter_id}{state}  {_utc(letter.died_s)}  {letter.job_id}{epoch}: {ops}, "
        f"delivered {letter.deliveries} times: {letter.reason}"
    )


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_OP_COLUMNS = ("step", "start_ns", "duration_ns", "seq_id", "mc", "mb_id")


def _text(body: bytes, op_types: "OpTypes | None", *, max_rows: int) -> Iterator[str]:
    """The readable part of the body, with the job's operation types if known."""
    from app.ingest.wire import codec
    from app.trace.ops import BUILT_IN

    known = op_types or BUILT_IN
    try:
        batch = codec.read_entry(bytes(codec.open_entry(body)), known)
    except PacelineError as error:
        yield f"cannot be read: {error}"
        yield f"begins with {body[:32].hex(' ')}"
        return
    done = ", ".join(f"{step} ({number})" for step, number in batch.steps_done[:10])
    yield (
        f"epoch {batch.epoch}, rank {batch.rank} (dp {batch.dp_rank}, stage {batch.stage}), "
        f"host {batch.host or 'unknown'}, batch {batch.batch_seq}, "
        f"steps done with their operations: {done or 'none'}"
    )
    columns = batch.columns
    if max_rows and columns.num_ops:
        yield "  ".join(("optype", *_OP_COLUMNS))
    for row in range(min(max_rows, columns.num_ops)):
        numbers = (str(int(getattr(columns, name)[row])) for name in _OP_COLUMNS)
        yield "  ".join((known.name(columns.optype[row]), *numbers))
    if columns.num_ops > max_rows:
        yield f"and {columns.num_ops - max_rows} more"
