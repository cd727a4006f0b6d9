"""`superlinear`: which input costs more than in proportion to its size, or holds up the API?"""

import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from app.alerts.rules.rule_text import MAX_RULES_BYTES, parse_rules
from app.api.http.bodies import largest_body
from app.errors import PacelineError
from app.store.migrations import migrate
from app.trace.readers.importing import ImportOptions
from app.trace.readers.published import meta
from app.trace.readers.registry import FORMATS, format_named
from benchmarks.hostile_requests import (
    MAX_QUERY_BYTES,
    HostileRequest,
    InProcessApi,
    requests_of,
)
from tests.api import recorded
from tests.api.server import TOKEN, Api, running
from tests.harness.fuzz.input_families import (
    JSON,
    TEXTS,
    YAML,
    Growth,
    collector_of_a_server,
    reader_growth,
)
from tests.harness.fuzz.repeated_records import importer, record_families
from tests.harness.samples import SAMPLES

_MAX_PUSH_BYTES = 2 << 20  # larger ones take as long for each byte
_MAX_FILE_BYTES = 1 << 20


def superlinear(
    only: Annotated[str, typer.Option(help="Only inputs whose name has this text.")] = "",
    files: Annotated[bool, typer.Option(help="Also YAML and trace files.")] = True,
) -> None:
    """Send the API, and give the readers of files, hostile inputs of n, 2n and 4n bytes.

    Exits with 1 where CPU time grows with a power of the size above 1.2, or the event loop is held
    up for more than 50 ms. Sizes are the largest that the limits allow.

    Example: python -m benchmarks superlinear --only check_rules
    """
    began_s = time.perf_counter()
    with _without_log(), collector_of_a_server():
        found = asyncio.run(_of_api(only))
        for name, measure in _of_files() if files else ():
            if only in name:
                found[name] = measure()
                _tell(name, found[name])
    wrong = {name: _shown(each) for name, each in found.items() if each.is_wrong}
    by_cost = sorted(found, key=lambda name: found[name].costs_s[-1], reverse=True)
    blocked_s = max((each.blocked_s for each in found.values()), default=0.0)
    summary = {
        "inputs": len(found),
        "seconds": round(time.perf_counter() - began_s, 1),
        "slowest": {name: _shown(found[name]) for name in by_cost[:3]},
        "longest_block_s": round(blocked_s, 3),
        "wrong": wrong,
    }
    typer.echo(json.dumps(summary))
    if wrong:
        raise typer.Exit(1)


@contextmanager
def _without_log() -> Iterator[None]:
    """Each hostile request would have a line of its own."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _tell(name: str, growth: Growth) -> None:
    """What is wrong, as soon as it is found."""
    if growth.is_wrong:
        typer.echo(json.dumps({name: _shown(growth)}), err=True)


def _shown(growth: Growth) -> dict[str, Any]:
    costs_ms = [round(1e3 * each, 1) for each in growth.costs_s]
    exponent, blocked_ms = round(growth.exponent, 2), round(1e3 * growth.blocked_s, 1)
    return {"cpu_ms": costs_ms, "exponent": exponent, "blocked_ms": blocked_ms}


async def _of_api(only: str) -> dict[str, Growth]:
    found: dict[str, Growth] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-superlinear-") as folder:
        migrated = Path(folder) / "migrated.db"
        await asyncio.to_thread(migrate, f"sqlite:///{migrated}")
        async with _fresh_api(migrated) as api:
            document = api.app.openapi()
        chosen = [each for each in requests_of(document) if only in each.name]
        for changes, group in groupby(chosen, _what_it_changes):
            async with _fresh_api(migrated) as api:
                asked = InProcessApi(api.app, TOKEN)
                for request in group:
                    api.monotonic.now_s += 1000.0  # rates are of no interest here
                    found[request.name] = await _measured(asked, request)
                    _tell(request.name, found[request.name])
            if changes:
                typer.echo(json.dumps({changes: dict(sorted(asked.statuses.items()))}), err=True)
    return found


def _what_it_changes(request: HostileRequest) -> str:
    """The operation, if it may change what later ones find: a new run has no window."""
    return "" if request.method == "GET" else request.name.partition(" ")[0]


@asynccontextmanager
async def _fresh_api(migrated: Path) -> AsyncIterator[Api]:
    """An API with a job that has a window."""
    path = migrated.with_name("paceline.db")
    for left in migrated.parent.glob("paceline.db*"):
        left.unlink()
    shutil.copy(migrated, path)
    async with running(f"sqlite:///{path}", demo_switch=migrated.with_name("demo")) as api:
        await api.register()
        recorded.save(api, recorded.window())
        yield api


async def _measured(api: InProcessApi, request: HostileRequest) -> Growth:
    size = request.most // 4 if request.most else _largest_bytes(request) // 5
    found, num_repeats = await api.growth(request, size), 0
    while not found.is_settled(num_repeats):
        found = found.cheapest(await api.growth(request, size))
        num_repeats += 1
    return found


def _largest_bytes(request: HostileRequest) -> int:
    if request.parameter is not None:
        return MAX_QUERY_BYTES
    return min(largest_body(request.scope(TOKEN, 0)[0]).max_bytes, _MAX_PUSH_BYTES)


def _of_files() -> Iterator[tuple[str, Callable[[], Growth]]]:
    for family, text in YAML.items():
        yield (
            f"rules file: {family}",
            partial(reader_growth, _read_rules, text, MAX_RULES_BYTES // 5),
        )
    with tempfile.TemporaryDirectory(prefix="paceline-superlinear-") as folder:
        path = Path(folder) / "meta-a.yaml"

        def read_meta(text: str) -> None:
            path.write_text(text, encoding="utf-8")
            with suppress(PacelineError):
                meta.load(path)

        for family, text in YAML.items():
            yield (
                f"meta file: {family}",
                partial(reader_growth, read_meta, text, _MAX_FILE_BYTES // 5),
            )
        for name in FORMATS:
            records = importer(name, Path(folder))
            for label, files in record_families(name):
                yield (
                    f"{name} records: {label}",
                    partial(reader_growth, records, files, _MAX_FILE_BYTES // 5),
                )
            for family, text in (*JSON.items(), *TEXTS.items()):
                read = _file_reader(name, Path(folder))
                yield (
                    f"{name} file: {family}",
                    partial(reader_growth, read, text, _MAX_FILE_BYTES // 5),
                )


def _read_rules(text: str) -> None:
    with suppress(PacelineError):
        parse_rules(text)


def _file_reader(name: str, folder: Path) -> Callable[[str], None]:
    """Reads a text in place of each file of the format's sample."""
    chosen = format_named(name)
    paths: Sequence[Path] = [folder / each for each in SAMPLES[chosen.name]()]

    def read(text: str) -> None:
        for path in paths:
            path.write_text(text, encoding="utf-8")
        with suppress(PacelineError), closing(chosen.opened(paths, ImportOptions())) as opened:
            opened.describe()

    return read
