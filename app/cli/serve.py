"""Everything on one machine: queue, store, API and consumer, as one command."""

import fcntl
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from app.cli.children import Child, paceline
from app.errors import StartUpFailed
from app.ingest.embedded import EmbeddedQueue
from app.settings import Settings
from app.store.migrate import migrate

_STOP_WITHIN_S = 8.0
_CHECK_EVERY_S = 0.25


@contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[None]:
    """Holds the data directory for this process alone.

    Raises:
        StartUpFailed: another Paceline works in it.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (data_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartUpFailed(
                f"another Paceline runs on {data_dir}: stop it, or choose another with --data-dir"
            ) from error
        yield


def check_port_free(host: str, port: int) -> None:
    """Returns if the address can be bound.

    Raises:
        StartUpFailed: something else listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartUpFailed(
                f"{host}:{port} cannot be used ({error.strerror}): choose another with --port"
            ) from error


class StopSignal:
    """Set by Ctrl-C or SIGTERM; a second one changes nothing."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it was set within the time."""
        return self._event.wait(timeout_s)


class Everything:
    """Queue, store, API and consumer of one machine, kept running until told to stop."""

    def __init__(self, settings: Settings, stop: StopSignal) -> None:
        self._settings = settings
        self._stop = stop
        self._queue: EmbeddedQueue | None = None
        self._children: list[Child] = []

    def start(self, stack: ExitStack) -> None:
        """Start all in order; the API answers when this returns. `stack` stops them again.

        Raises:
            StartUpFailed: something cannot start; the message says what to change.
        """
        settings = self._settings
        stack.enter_context(data_dir_lock(settings.data_dir))
        check_port_free(settings.host, settings.port)
        environment = settings.as_environment()
        if settings.redis_url is None:
            self._queue = EmbeddedQueue(
                settings.data_dir, max_memory_bytes=settings.redis_maxmemory_mb * 1024**2
            )
            stack.callback(self._queue.stop)
            environment["PACELINE_REDIS_URL"] = self._queue.start()
        migrate(settings.store_url)
        # The name is ours as long as the lock is, so a consumer that is started again has its
        # shards back at once.
        commands = {"api": ["api"], "consumer": ["consumer", "--name", "embedded"]}
        for name, command in commands.items():
            child = Child(name, paceline(*command), environment)
            self._children.append(child)
            child.start()
            stack.callback(child.stop, within_s=_STOP_WITHIN_S)
        self._wait_until_answering(self._children[0])

    def add(self, child: Child, stack: ExitStack) -> None:
        """One more process to keep running."""
        self._children.append(child)
        child.start()
        stack.callback(child.stop, within_s=_STOP_WITHIN_S)

    def keep_running(self) -> None:
        """Returns when told to stop; starts again what dies before."""
        while not self._stop.wait(_CHECK_EVERY_S):
            if self._queue is not None and not self._queue.alive():
                self._queue.start()
            for child in self._children:
                child.keep_alive()

    def _wait_until_answering(self, api: Child) -> None:
        address = (self._settings.host, self._settings.port)
        while not self._stop.wait(0.05):
            if (status := api.ended()) is not None:
                raise StartUpFailed(f"the API ended with status {status}: its log above says why")
            try:
                socket.create_connection(address, timeout=1).close()
            except OSError:
                continue
            return


def page_url(settings: Settings) -> str:
    """Where the page is, for who sits at this machine if it listens on all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.tls_cert is None else "https"
    return settings.public_url or f"{scheme}://{shown}:{settings.port}"


def others_need(settings: Settings) -> list[str]:
    """What is still to be set so that other machines are answered: a line, or none."""
    listens_on_all = settings.host in ("0.0.0.0", "::")  # noqa: S104
    if not listens_on_all or settings.allowed_hosts or settings.public_url:
        return []
    return ["From elsewhere: set PACELINE_ALLOWED_HOSTS to the names that this machine is called."]


def address_lines(settings: Settings, token: str, *, may_tell: bool) -> list[str]:
    """Where the page is, and the token or where it is: what goes into a log is read by others."""
    url = page_url(settings)
    if may_tell:
        return [f"Page:   {url}/#token={token}", f"Token:  {token}"]
    file = settings.token_file
    is_kept = file.exists() and file.read_text().strip() == token
    return [f"Page:   {url}", f"Token:  in {file if is_kept else 'PACELINE_TOKEN'}"]
