"""Where does the event queue of a `paceline serve` listen that runs on this machine?"""

import socket
from contextlib import suppress
from pathlib import Path

from app.errors import StartUpFailed

_SOCKET = Path("queue") / "valkey.sock"  # where app.ingest.embedded_server puts it


def running_url(data_dir: Path) -> str:
    """URL of the server on this data directory.

    Raises:
        StartUpFailed: none listens; or its path is so long that it listens elsewhere.
    """
    path = data_dir.absolute() / _SOCKET
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return f"unix://{path}"
    raise StartUpFailed(
        f"no event queue runs on {data_dir}: start 'paceline serve' on it, or set "
        "PACELINE_REDIS_URL to the queue in use"
    )
