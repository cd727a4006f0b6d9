"""PostgreSQL and the event queue as servers of the harness's own.

PostgreSQL is created by initdb, and killed whole or one backend at a time; the queue listens on a
TCP port and is durable by default.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from app.ingest.embedded import find_server, server_command
from tests.harness.processes import ControlledProcess, NotInTime, children, free_port, wait_until

USER = "paceline"
_READY_WITHIN_S = 60.0
MAX_MEMORY_BYTES = 1 << 30
ANSWERS_WITHIN_S = 60.0


def find_programs() -> Path | None:
    """The directory of initdb and postgres: on PATH, or where Debian puts the newest."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(debian, key=lambda path: int(path.parts[4]), default=None)
    return newest.parent if newest else None


class PostgresServer(ControlledProcess):
    """One database cluster in a directory of its own, on a TCP port of loopback."""

    def __init__(
        self,
        programs: Path,
        parent: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        wal_segment_mb: int = 16,
    ) -> None:
        # It refuses to run as root, and a user of its own has to get into the directory.
        user = "postgres" if os.geteuid() == 0 else None
        self.port = free_port()
        self._programs = programs
        self._directory = Path(tempfile.mkdtemp(prefix="pl-faults-pg-", dir=parent))
        if user:
            shutil.chown(self._directory, user)
        data = self._directory / "data"
        initdb = [*(str(programs / "initdb"), "-D", str(data), "-U", USER)]
        initdb += ["-A", "trust", "-E", "UTF8", "--no-locale", f"--wal-segsize={wal_segment_mb}"]
        environment = {"PATH": os.environ["PATH"], "LANG": "C"}
        subprocess.run(
            initdb, check=True, capture_output=True, user=user, cwd=self._directory, env=environment
        )
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(self._directory)]
        command += ["-c", "listen_addresses=127.0.0.1", "-p", str(self.port)]
        for name, value in (settings or {}).items():
            command += ["-c", f"{name}={value}"]
        super().__init__(command, self._directory / "log", environment=environment, user=user)

    @property
    def directory(self) -> Path:
        """Where its data and its log are."""
        return self._directory

    def url(self, port: int | None = None) -> str:
        """URL of its database, on its own port or a proxy's."""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/postgres"

    def start_and_wait(self) -> float:
        """Start it; seconds until it answered.

        After a kill -9 it can start only once its old backends have noticed.
        """
        return wait_until(self._started, "PostgreSQL answers", _READY_WITHIN_S)

    def _started(self) -> bool:
        if not self.is_running():
            self.start()
        return self.answers()

    def answers(self) -> bool:
        """Whether it has recovered and takes statements."""
        return self._psql("SELECT 1").returncode == 0

    def execute(self, statements: str) -> None:
        """Run statements.

        Raises:
            NotInTime: one failed; a harness that cannot make its fault proves nothing.
        """
        done = self._psql(statements)
        if done.returncode:
            raise NotInTime(done.stderr.decode(errors="replace"))

    def session(self, statements: str) -> subprocess.Popen[bytes]:
        """A session beside ours that runs statements, and holds their locks, until its end."""
        return subprocess.Popen(self._psql_command(statements), stdout=subprocess.PIPE)

    def kill_backend(self) -> bool:
        """kill -9 of one session's process; False when there is none."""
        sessions = [pid for pid, line in children(self.pid) if f" {USER} " in line]
        if sessions:
            os.kill(sessions[0], 9)
        return bool(sessions)

    def remove(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _psql(self, statements: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self._psql_command(statements), capture_output=True, check=False)

    def _psql_command(self, statements: str) -> list[str]:
        psql = [str(self._programs / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1"]
        return [*psql, "-d", f"{self.url()}?connect_timeout=3", "-c", statements]


class QueueServer(ControlledProcess):
    """Valkey or Redis; `changed` settings go before those of an embedded queue."""

    def __init__(self, directory: Path, changed: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self._data = directory / "queue"
        self._data.mkdir(parents=True, exist_ok=True)
        arguments = server_command(
            find_server(), self._data, self._data / "socket", MAX_MEMORY_BYTES
        )
        settings = {"port": str(self.port), "bind": "127.0.0.1", "unixsocket": ""}
        for name, value in (settings | dict(changed or {})).items():
            arguments += [f"--{name}", value]
        super().__init__(arguments, directory / "queue.log")

    def start_and_wait(self) -> float:
        """Start it; seconds until it answered, with all that was on its disk."""
        self.start()
        return wait_until(self.answers, "the queue answers", ANSWERS_WITHIN_S)

    def answers(self) -> bool:
        """Whether it has read its files and takes commands."""
        try:
            return self.send("PING") == "+PONG"
        except OSError:
            return False

    def wipe(self) -> None:
        """Kill it and remove its files; the caller starts it again."""
        self.kill()
        shutil.rmtree(self._data)
        self._data.mkdir()

    def cut_tail(self, size_bytes: int) -> None:
        """Truncate its newest file, as if the end had never reached the disk."""
        newest = max(self._data.rglob("*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, max(0, newest.stat().st_size - size_bytes))

    def file_bytes(self) -> int:
        """Size of its largest file."""
        return max(path.stat().st_size for path in self._data.rglob("*") if path.is_file())

    def send(self, *words: str) -> str:
        """First line of the answer to a command, such as "+OK" or ":3"."""
        parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word)}", word))]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall("".join(f"{part}\r\n" for part in parts).encode())
            return line.makefile("rb").readline().decode().strip()
