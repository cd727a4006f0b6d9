"""`paceline bench fuzz`: does any body break the service, take its memory or hold it up?"""

import json
import subprocess
from typing import Annotated, Any

import typer

QUEUE_BYTES = 4 << 30
MAX_GROWTH_MB = 64.0


def fuzz(
    payloads: Annotated[int, typer.Option(min=1, help="Damaged batches to read.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same payloads.")] = 1,
    http_every: Annotated[
        int, typer.Option(min=0, help="Every which one is also posted to an API; 0: none.")
    ] = 101,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Damage files of this import format instead; all: of each."),
    ] = None,
    mutations: Annotated[int, typer.Option(min=1, help="Damaged files of a format.")] = 200_000,
) -> None:
    """Read damaged batches and decompression bombs as the API does, and post some to a real one.

    Exits with 1 after a crash, a 5xx or more than 64 MB of growth; times are only told. With
    --format, files are damaged and imported: one has to be taken, or refused in one line.

    Example: paceline bench fuzz --payloads 20000 --seed 7
    """
    if format_ is not None:
        _fuzz_importing(format_, mutations, seed)
        return
    result = result_of(_start_reading(payloads, seed))
    # After that, not beside it: each would take from the other the time that is told.
    posted = _posted(payloads, seed, http_every) if http_every else None
    typer.echo(json.dumps({"seed": seed, **result, "http": posted}))
    if not all(_is_fine(each) for each in (result, posted) if each is not None):
        raise typer.Exit(1)


def _fuzz_importing(name: str, mutations: int, seed: int) -> None:
    from app.cli.bench import fuzz_import

    is_fine = True
    for each in fuzz_import.formats(name):
        result = fuzz_import.result_of(each, mutations, seed)
        typer.echo(json.dumps({"seed": seed, **result}))
        is_fine &= _is_fine(result)
    if not is_fine:
        raise typer.Exit(1)


def fuzz_importing(
    format_: Annotated[str, typer.Option("--format")],
    mutations: Annotated[int, typer.Option()],
    seed: Annotated[int, typer.Option()],
) -> None:
    """Import them in this process, which may not survive it, and print what became of them."""
    from app.cli.bench.fuzz_import import import_all
    from app.engine.memory import give_large_memory_back

    give_large_memory_back()
    typer.echo(json.dumps(import_all(format_, mutations, seed)))


def fuzz_reading(
    payloads: Annotated[int, typer.Option()], seed: Annotated[int, typer.Option()]
) -> None:
    """Read them in this process, which may not survive it, and print what became of them."""
    from app.cli.bench.fuzz_decode import decode_all

    typer.echo(json.dumps(decode_all(seed, payloads)))


def _start_reading(payloads: int, seed: int) -> subprocess.Popen[str]:
    from app.cli.children import paceline

    command = paceline("bench", "fuzz-reading", f"--payloads={payloads}", f"--seed={seed}")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603, ours


def result_of(reading: subprocess.Popen[str]) -> dict[str, Any]:
    """What a reading process printed, or by which signal it died."""
    printed, _ = reading.communicate()
    if reading.returncode:
        return {"crashed": reading.returncode, "wrong": ["the reading process died"]}
    result: dict[str, Any] = json.loads(printed)
    return result


def _posted(payloads: int, seed: int, every: int) -> dict[str, Any]:
    from app.cli.bench.fuzz_http import post_all
    from app.cli.bench.fuzz_payloads import Payloads
    from app.cli.bench.ingest_stack import running

    made = Payloads(seed)
    with running(workers=1, queue_bytes=QUEUE_BYTES) as target:
        return post_all(target, made, range(0, payloads, every))


def _is_fine(result: dict[str, Any]) -> bool:
    return not result["wrong"] and result["rss_growth_mb"] <= MAX_GROWTH_MB
