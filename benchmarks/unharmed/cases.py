"""What breaks, where, and when; and the servers that trainings meet."""

import contextlib
import itertools
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SERVERS = ("works", "away", "wrong-token", "frozen", "nonsense", "dies", "disk-full")
PLACES = ("start", "middle", "end")
# Of the training itself, but for the last: Paceline's own code raises.
FAULTS = (
    *("exception", "exit-3", "os-exit-5", "sigterm", "sigterm-handled", "sigint", "sigkill"),
    *("abort", "fork", "workers", "subprocess", "hook"),
)
TORCHRUN_FAULTS = ("", "exception", "sigkill", "sigterm", "exit-3", "hook")


@dataclass(frozen=True, slots=True)
class Ending:
    """A training's own fault and its place, "" for none; the same with Paceline and without."""

    fault: str = ""
    place: str = ""
    is_torchrun: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A training beside a server, to be compared with the same ending without Paceline."""

    ending: Ending
    server: str
    closes: bool

    @property
    def name(self) -> str:
        """In one line."""
        ending = self.ending
        fault = f"{ending.fault} at {ending.place}" if ending.fault else "no fault"
        launcher = "torchrun" if ending.is_torchrun else "plain"
        return f"{launcher}, {fault}, server {self.server}" + (", closes" if self.closes else "")


def plain_cases() -> list[Case]:
    """Every fault at every place beside every server; half of them close their recorder."""
    endings = [Ending(), *(Ending(*each) for each in itertools.product(FAULTS, PLACES))]
    pairs = itertools.product(endings, SERVERS)
    return [Case(ending, server, at % 2 == 0) for at, (ending, server) in enumerate(pairs)]


def torchrun_cases() -> list[Case]:
    """Two ranks under `torchrun --max-restarts 1`; the fault is the last rank's, once."""
    endings = [
        Ending(fault, "middle" if fault else "", is_torchrun=True) for fault in TORCHRUN_FAULTS
    ]
    pairs = itertools.product(SERVERS, endings)
    return [Case(ending, server, at % 2 == 0) for at, (server, ending) in enumerate(pairs)]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a case's recorder sends to, and where it spools."""

    url: str
    spool: str | None = None


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[dict[str, Address]]:
    """Servers by name; one that cannot be had here is left out."""
    with contextlib.ExitStack() as stack:
        found = {
            "works": Address(stack.enter_context(_answering(_Works))),
            "wrong-token": Address(stack.enter_context(_answering(_Refuses))),
            "nonsense": Address(stack.enter_context(_answering(_Nonsense))),
            "dies": Address(stack.enter_context(_answering(_Dies))),
        }
        frozen = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        found["frozen"] = Address(f"http://127.0.0.1:{frozen.getsockname()[1]}")
        unused = socket.create_server(("127.0.0.1", 0))
        found["away"] = Address(f"http://127.0.0.1:{unused.getsockname()[1]}")
        unused.close()
        disk = stack.enter_context(_full_disk(directory / "full"))
        if disk is not None:
            found["disk-full"] = Address(found["away"].url, str(disk))
        yield found


class _Works(BaseHTTPRequestHandler):
    """Answers as Paceline does, to all that a recorder asks."""

    protocol_version = "HTTP/1.1"
    status = 200

    def handle_all(self) -> None:
        """Any request."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.reply()

    do_PUT = do_POST = handle_all  # noqa: N815

    def reply(self) -> None:
        """The answer."""
        told = {"job_id": "unharmed", "epoch": 1, "accepts": [], "job_state": "healthy"}
        self.send(self.status, json.dumps({**told, "accepted": 1, "rejected": 0}).encode())

    def send(self, status: int, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _Refuses(_Works):
    """The token is wrong."""

    def reply(self) -> None:
        """As Paceline refuses it."""
        self.send(401, b'{"code": "unauthorized", "detail": "the token is not known"}')


class _Nonsense(_Works):
    """Answers with bytes that mean nothing, of several kinds."""

    kinds = itertools.cycle((
        b"\x00\xff" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"epoch": "x"}',
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    ))  # fmt: skip

    def reply(self) -> None:
        """The next kind."""
        self.wfile.write(next(self.kinds))
        self.close_connection = True


class _Dies(_Works):
    """Registers runs, and breaks every later connection."""

    def reply(self) -> None:
        """To the registration only."""
        if self.command == "PUT":
            super().reply()
        self.close_connection = True


@contextlib.contextmanager
def _answering(kind: type[_Works]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients are killed
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _full_disk(path: Path) -> Iterator[Path | None]:
    """A tiny disk without room; None where it may not be mounted."""
    path.mkdir()
    program = shutil.which("mount") or "mount"
    mount = [program, "-t", "tmpfs", "-o", "size=64k", "paceline-full", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        yield None
        return
    try:
        with contextlib.suppress(OSError), (path / "filler").open("wb") as file:
            file.write(bytes(1 << 20))
        yield path
    finally:
        unmount = [shutil.which("umount") or "umount", "-l", str(path)]
        subprocess.run(unmount, check=False, capture_output=True)
