"""What breaks, where, and when; and the servers that trainings meet."""

import contextlib
import itertools
import json
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PLACES = ("start", "middle", "end")
BROKEN = ("wrong-token", "frozen", "nonsense", "dies")
# A server breaks at once, after the run has registered, or when ranks report how they ended.
SERVERS = (
    *("works", "away", "disk-full"),
    *(f"{kind} at {place}" for kind, place in itertools.product(BROKEN, PLACES)),
)
# Of the training itself, but for the last: Paceline's own code raises.
FAULTS = (
    *("exception", "exit-3", "os-exit-0", "os-exit-5", "sigterm", "sigterm-handled", "sigint"),
    *("sigkill", "abort", "fork", "workers", "subprocess", "hook"),
)
# The fault is the last rank's, once; "preempted" is a SIGTERM to torchrun itself.
TORCHRUN_FAULTS = ("exception", "exit-3", "sigterm", "sigkill", "preempted", "fork", "hook")
STEPS = 6
STATUSES = {
    **{"exception": 1, "exit-3": 3, "os-exit-5": 5, "sigterm": -signal.SIGTERM},
    **{"sigint": -signal.SIGINT, "sigkill": -signal.SIGKILL, "abort": -signal.SIGABRT},
}
HARMLESS = ("", "fork", "workers", "subprocess", "hook")
GPU_FAULTS = ("exception", "sigkill", "sigterm", "preempted", "hook")


@dataclass(frozen=True, slots=True)
class Ending:
    """A training's own fault and its place, "" for none; the same with Paceline and without."""

    fault: str = ""
    place: str = ""
    is_torchrun: bool = False
    is_gpu: bool = False

    @property
    def status(self) -> int:
        """The exit status without Paceline; torchrun's is of the second attempt."""
        if self.is_torchrun:
            return 1 if self.fault == "preempted" else 0
        return STATUSES.get(self.fault, 0)

    @property
    def num_losses(self) -> int:
        """How many losses the first attempt's faulty rank writes."""
        at_fault = {"start": 0, "middle": STEPS // 2 + 1}
        is_deadly = self.fault not in HARMLESS
        return at_fault.get(self.place, STEPS) if is_deadly else STEPS

    @property
    def launcher(self) -> str:
        """What starts the training."""
        return f"torchrun{', NCCL' if self.is_gpu else ''}" if self.is_torchrun else "plain"


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
        closes = ", closes" if self.closes else ""
        return f"{ending.launcher}, {fault}, server {self.server}{closes}"


def plain_cases() -> list[Case]:
    """Every fault at every place beside every server; half of them close their recorder."""
    return _beside_servers([Ending(), *_at_places(FAULTS)])


def torchrun_cases() -> list[Case]:
    """The same for three ranks under `torchrun --max-restarts 1`."""
    endings = [Ending(), *_at_places(TORCHRUN_FAULTS)]
    return _beside_servers([replace(each, is_torchrun=True) for each in endings])


def gpu_cases() -> list[Case]:
    """The same with NCCL, both ranks on one GPU."""
    endings = [Ending(), *(Ending(fault, "middle") for fault in GPU_FAULTS)]
    return _beside_servers([replace(each, is_torchrun=True, is_gpu=True) for each in endings])


def _at_places(faults: Sequence[str]) -> list[Ending]:
    return [Ending(*each) for each in itertools.product(faults, PLACES)]


def _beside_servers(endings: Sequence[Ending]) -> list[Case]:
    pairs = itertools.product(endings, SERVERS)
    return [Case(ending, server, at % 2 == 0) for at, (ending, server) in enumerate(pairs)]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a case's recorder sends to, where it spools, and what has come, by job and kind."""

    url: str
    spool: str | None = None
    requests: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


@contextlib.contextmanager
def servers(directory: Path) -> Iterator[dict[str, Address]]:
    """Servers by name; one that cannot be had here is left out."""
    with contextlib.ExitStack() as stack:
        found = {"works": stack.enter_context(_answering("", ""))}
        for kind, place in itertools.product(BROKEN, PLACES):
            found[f"{kind} at {place}"] = stack.enter_context(_answering(kind, place))
        unused = socket.create_server(("127.0.0.1", 0))
        found["away"] = Address(f"http://127.0.0.1:{unused.getsockname()[1]}")
        unused.close()
        disk = stack.enter_context(_full_disk(directory / "full"))
        if disk is not None:
            found["disk-full"] = Address(found["away"].url, str(disk))
        yield found


NONSENSE = itertools.cycle((
    b"\x00\xff" * 100,
    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
    b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"epoch": "x"}',
    b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
))  # fmt: skip


class _Server(ThreadingHTTPServer):
    """Answers as Paceline does to all that a recorder asks, until it breaks."""

    request_queue_size = 512

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.kind, self.place = kind, place
        self.closed = threading.Event()
        self.address = Address(f"http://127.0.0.1:{self.server_address[1]}")
        self._lock = threading.Lock()

    def take(self, method: str, path: str) -> bool:
        """Count the request; whether the server breaks at it."""
        job, kind = [*path.split("/")[4:], "registration"][:2]
        with self._lock:
            self.address.requests[job][kind] += 1
        match self.place:
            case "start":
                return True
            case "middle":
                return method != "PUT"
            case "end":
                return path.endswith(("/exits", "/end"))
        return False

    def handle_error(self, *_: object) -> None:
        """Quiet: clients are killed."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_all(self) -> None:
        """Any request."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_broken = self.server.take(self.command, self.path)
        match self.server.kind if is_broken else "":
            case "wrong-token":
                self.send(401, b'{"code": "unauthorized", "detail": "the token is not known"}')
            case "frozen":
                self.server.closed.wait()
                self.close_connection = True
            case "nonsense":
                self.wfile.write(next(NONSENSE))
                self.close_connection = True
            case "dies":
                self.close_connection = True
            case _:
                told = {"job_id": "unharmed", "epoch": 1, "accepts": [], "job_state": "healthy"}
                self.send(200, json.dumps({**told, "accepted": 1, "rejected": 0}).encode())

    do_PUT = do_POST = handle_all  # noqa: N815

    def send(self, status: int, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def _answering(kind: str, place: str) -> Iterator[Address]:
    with _Server(kind, place) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.address
        finally:
            server.closed.set()
            server.shutdown()


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
