"""`superlinear`: which input costs more than in proportion to its size, or holds up the API?"""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from app.alerts.rules.rule_text import MAX_RULES_BYTES, parse_rules
from app.errors import PacelineError
from app.settings import Settings
from app.store.migrations import migrate
from app.trace.readers.importing import ImportOptions
from app.trace.readers.published import meta
from app.trace.readers.registry import FORMATS, SCORE_FORMATS, format_named
from tests.api import recorded
from tests.api.server import TOKEN, running
from tests.harness.fuzz.hostile_requests import (
    MAX_QUERY_BYTES,
    HostileRequest,
    InProcessApi,
    requests_of,
)
from tests.harness.fuzz.input_families import JSON, MAX_EXPONENT, TEXTS, YAML, Family, Growth

MAX_BLOCKED_S = 0.05
_MAX_BODY_BYTES = 256 << 10  # of people's requests
_MAX_PUSH_BYTES = 2 << 20
_MAX_FILE_BYTES = 1 << 20
_AGAIN = 3  # measurements of what looks wrong: another process may have been in the way
_PUSHES = ("push_ops", "push_spans", "add_scores")


def superlinear(
    only: Annotated[str, typer.Option(help="Only inputs whose name has this text.")] = "",
    files: Annotated[bool, typer.Option(help="Also YAML and trace files.")] = True,
) -> None:
    """Send the API, and give the readers of files, hostile inputs of n, 2n and 4n bytes.

    Exits with 1 where CPU time grows with a power of the size above 1.2, or the event loop is held
    up for more than 50 ms. Sizes are the largest that the limits allow.

    Example: python -m benchmarks superlinear --only check_rules
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    began_s = time.perf_counter()
    found = asyncio.run(_of_api(only))
    if files:
        found |= {name: growth for name, growth in _of_files() if only in name}
    wrong = {name: _shown(each) for name, each in found.items() if _is_wrong(each)}
    slowest = max((each.costs_s[-1] for each in found.values()), default=0.0)
    blocked = max((each.blocked_s for each in found.values()), default=0.0)
    seconds = round(time.perf_counter() - began_s, 1)
    summary = {"inputs": len(found), "seconds": seconds, "slowest_cpu_s": round(slowest, 3)}
    typer.echo(json.dumps({**summary, "longest_block_s": round(blocked, 3), "wrong": wrong}))
    if wrong:
        raise typer.Exit(1)


def _is_wrong(growth: Growth) -> bool:
    return growth.exponent > MAX_EXPONENT or growth.blocked_s > MAX_BLOCKED_S


def _shown(growth: Growth) -> dict[str, Any]:
    costs_ms = [round(1e3 * each, 1) for each in growth.costs_s]
    exponent, blocked_ms = round(growth.exponent, 2), round(1e3 * growth.blocked_s, 1)
    return {"cpu_ms": costs_ms, "exponent": exponent, "blocked_ms": blocked_ms}


async def _of_api(only: str) -> dict[str, Growth]:
    with tempfile.TemporaryDirectory(prefix="paceline-superlinear-") as folder:
        url = f"sqlite:///{folder}/paceline.db"
        await asyncio.to_thread(migrate, url)
        async with running(url, demo_switch=Path(folder) / "demo") as api:
            await api.register()
            recorded.save(api, recorded.window())
            asked = InProcessApi(api.app, TOKEN)
            found: dict[str, Growth] = {}
            for request in requests_of(api.app.openapi()):
                if only not in request.name:
                    continue
                api.monotonic.now_s += 1000.0  # rates are of no interest here
                found[request.name] = await _measured(asked, request)
            return found


async def _measured(api: InProcessApi, request: HostileRequest) -> Growth:
    size = _largest_bytes(request) // 5
    found = await api.growth(request, size)
    for _ in range(_AGAIN):
        if not _is_wrong(found):
            break
        found = found.cheapest(await api.growth(request, size))
    return found


def _largest_bytes(request: HostileRequest) -> int:
    if request.parameter is not None:
        return MAX_QUERY_BYTES
    is_push = request.name.startswith(_PUSHES)
    largest = _MAX_PUSH_BYTES if is_push else _MAX_BODY_BYTES
    return min(largest, Settings(token=TOKEN).max_body_bytes)


def _of_files() -> Iterator[tuple[str, Growth]]:
    for family, text in YAML.items():
        yield f"rules file: {family}", _growth(_read_rules, text, MAX_RULES_BYTES)
    with tempfile.TemporaryDirectory(prefix="paceline-superlinear-") as folder:
        path = Path(folder) / "meta-a.yaml"

        def read_meta(text: str) -> None:
            path.write_text(text, encoding="utf-8")
            meta.load(path)

        for family, text in YAML.items():
            yield f"meta file: {family}", _growth(read_meta, text, _MAX_FILE_BYTES)
        for name in (*FORMATS, *SCORE_FORMATS):
            for family, text in (*JSON.items(), *TEXTS.items()):
                read = _file_reader(name, Path(folder))
                yield f"{name} file: {family}", _growth(read, text, _MAX_FILE_BYTES)


def _read_rules(text: str) -> None:
    parse_rules(text)


def _file_reader(name: str, folder: Path) -> Callable[[str], None]:
    """Reads a text in place of each file of the format's sample."""
    chosen = format_named(name)
    paths: Sequence[Path] = [folder / each for each in chosen.sample()]

    def read(text: str) -> None:
        for path in paths:
            path.write_text(text, encoding="utf-8")
        opened = chosen.opened(paths, ImportOptions())
        try:
            opened.describe()
        finally:
            opened.close()

    return read


def _growth(read: Callable[[str], None], family: Family, largest_bytes: int) -> Growth:
    found = _growth_once(read, family, largest_bytes)
    for _ in range(_AGAIN):
        if not _is_wrong(found):
            break
        found = found.cheapest(_growth_once(read, family, largest_bytes))
    return found


def _growth_once(read: Callable[[str], None], family: Family, largest_bytes: int) -> Growth:
    costs_s = []
    for part in (5, 2.5, 1.25):
        text = family(int(largest_bytes / part))
        began_s = time.process_time()
        with suppress(PacelineError):
            read(text)
        costs_s.append(time.process_time() - began_s)
    first_s, second_s, third_s = costs_s
    return Growth((first_s, second_s, third_s))
