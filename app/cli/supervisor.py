"""Runs queue, store, API and consumer on one machine, and restarts a process that dies.

Child processes never outlive this one, however it ends: Linux sends them SIGTERM.
"""

import ctypes
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from app.addresses import listens_on_all
from app.api.service.demo_switch import DemoSwitch
from app.cli.replay import token_of
from app.cli.store_access import locked_secrets
from app.data_directory import make_data_dir
from app.errors import DiskFull, QueueUnavailable, StartUpFailed
from app.ingest.embedded import SET_PARENT_DEATH_SIGNAL, EmbeddedQueue, dies_with_parent
from app.settings import Settings
from app.store.migrations import migrate

log = structlog.get_logger()

_RESTART_DELAYS_S = (0.2, 1.0, 5.0)
_STABLE_AFTER_S = 30.0


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends (Linux).

    Not one that is to outlive its shell: under nohup, or in a session of its own.
    """
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or os.getsid(0) == os.getpid()
    if sys.platform == "linux" and not outlives:
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def paceline_command(*arguments: str) -> list[str]:
    """The command line of another Paceline process."""
    return [sys.executable, "-m", "app.cli", *arguments]


class ChildProcess:
    """A child process, restarted when it dies. Call all methods from the main thread.

    The kernel ties a child's life to the thread that started it.
    """

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = command
        self._environment = {**os.environ, **environment}
        self._failures = 0
        self._restart_at_s = 0.0
        self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while there is a process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process."""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the parent only, which stops us in order
            preexec_fn=dies_with_parent(),
        )

    def ended(self) -> int | None:
        """The exit status, if the process has ended."""
        return self._process.poll() if self._process is not None else None

    def keep_alive(self) -> None:
        """Restart the process if it died, with growing delays if it dies soon after its start."""
        status = self.ended()
        now_s = time.monotonic()
        if status is not None and self._process is not None:
            young = now_s - self._started_s < _STABLE_AFTER_S
            self._failures = self._failures + 1 if young else 1
            delay_s = _RESTART_DELAYS_S[min(self._failures, len(_RESTART_DELAYS_S)) - 1]
            log.warning("process ended", name=self.name, status=status, restart_in_s=delay_s)
            self._process, self._restart_at_s = None, now_s + delay_s
        if self._process is None and now_s >= self._restart_at_s:
            self.start()

    def stop(self, *, within_s: float) -> None:
        """Terminate the process, and kill it after `within_s`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_STOP_WITHIN_S = 8.0
_STOP_DEMO_WITHIN_S = 20.0  # six jobs deliver what they have, then end
_CHECK_EVERY_S = 0.25
_DISK_CHECK_EVERY_S = 2.0
_COMPACT_EVERY_S = 30.0


@contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[None]:
    """Lock the data directory for this process."""
    make_data_dir(data_dir)
    with (data_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartUpFailed(
                f"another Paceline uses {data_dir}: stop it, or choose another with --data-dir"
            ) from error
        yield


def free_port(host: str) -> int:
    """A port of this address that nothing listens on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_port_free(host: str, port: int) -> bool:
    """Whether the address can be bound."""
    try:
        check_port_free(host, port)
    except StartUpFailed:
        return False
    return True


def check_port_free(host: str, port: int) -> None:
    """Check that the address can be bound."""
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
    """Set by Ctrl-C, SIGTERM or SIGHUP; a second signal has no effect."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""  # the name of the signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait; whether it was set within the timeout."""
        return self._event.wait(timeout_s)


class Supervisor:
    """Keeps queue, store, API and consumer of one machine running until stopped."""

    def __init__(self, settings: Settings, stop: StopSignal) -> None:
        self._settings = settings
        self._stop = stop
        self._queue: EmbeddedQueue | None = None
        self._children: list[ChildProcess] = []
        self._disk = settings.disk_watch()
        self._compact_at_s = 0.0
        self._check_errors: dict[str, str] = {}  # the last error of each part
        self._demo_switch = DemoSwitch(settings.demo_switch)
        self._demo: ChildProcess | None = None

    def start(self, stack: ExitStack) -> None:
        """Start all in order, and wait until the API answers; `stack` stops them."""
        settings = self._settings
        settings.check_usable()
        stack.enter_context(data_dir_lock(settings.data_dir))
        check_port_free(settings.host, settings.port)
        self._wait_for_space()
        self._demo_switch.turn_off()  # a demo of an earlier run is not resumed
        environment = settings.as_environment()
        if settings.redis_url is None:
            self._queue = EmbeddedQueue(
                settings.data_dir, max_memory_bytes=settings.redis_maxmemory_mb * 1024**2
            )
            stack.callback(self._queue.stop)
            environment["PACELINE_REDIS_URL"] = self._queue.start()
        migrate(settings.store_url)
        if (complaint := locked_secrets(settings)) is not None:
            log.warning("secrets of receivers", said=complaint)
        # One consumer at a time, so that a restarted one gets its shards back at once.
        label = ("--name", "embedded", "--identity", secrets.token_hex(16))
        commands = {"api": ["api"], "consumer": ["consumer", *label]}
        for name, command in commands.items():
            child = ChildProcess(name, paceline_command(*command), environment)
            self._children.append(child)
            child.start()
            stack.callback(child.stop, within_s=_STOP_WITHIN_S)
        stack.callback(self._stop_demo)  # first of all, while the API still takes its last batches
        self._wait_until_answering(self._children[0])

    def keep_running(self) -> None:
        """Restart processes that die, until stopped."""
        while not self._stop.wait(_CHECK_EVERY_S):
            if self._queue is not None:
                self._check("queue", partial(self._keep_queue, self._queue))
            for child in self._children:
                self._check(child.name, child.keep_alive)
            self._check("demo", self._run_demo_while_on)
        log.info("stopping everything", because=self._stop.reason)

    def _check(self, part: str, check: Callable[[], None]) -> None:
        """Check one part; an OSError, as on a full disk, is logged, and the check tried again."""
        try:
            check()
            self._check_errors.pop(part, None)
        except OSError as error:
            if self._check_errors.get(part) != str(error):  # not four times a second
                self._check_errors[part] = str(error)
                log.exception("process not checked", name=part, retry_in_s=_CHECK_EVERY_S)

    def _wait_for_space(self) -> None:
        """Return once the disk has room for what a start writes, or when stopped."""
        while True:
            try:
                self._disk.refuse_writes()
            except DiskFull as error:
                log.warning("waiting", reason=str(error), retry_in_s=_DISK_CHECK_EVERY_S)
                if not self._stop.wait(_DISK_CHECK_EVERY_S):
                    continue
            return

    def _keep_queue(self, queue: EmbeddedQueue) -> None:
        """Keep it alive; on a disk that fills, free what its log holds of entries that are done."""
        queue.keep_alive()
        now_s = time.monotonic()
        if now_s < self._compact_at_s or self._disk.level == "ok" or not queue.alive():
            return
        self._compact_at_s = now_s + _COMPACT_EVERY_S
        try:
            if queue.compact():
                log.info("event queue compacts its log, since the disk fills")
        except QueueUnavailable as error:
            log.warning("event queue not compacted", reason=str(error))

    def start_demo(self) -> None:
        """Push the demo's jobs to this server, until it stops or the switch is turned off."""
        command = paceline_command("demo-jobs", "--url", page_url(self._settings, is_local=True))
        environment = {"PACELINE_TOKEN": token_of(self._settings.with_token())}
        self._demo = ChildProcess("demo", command, environment)
        self._demo.start()

    def _run_demo_while_on(self) -> None:
        has_switch = self._demo_switch.path is not None
        if has_switch and not self._demo_switch.is_on(time.time()):
            self._demo_switch.turn_off()
            self._stop_demo()
        elif self._demo is not None:
            self._demo.keep_alive()
        elif has_switch:
            self.start_demo()

    def _stop_demo(self) -> None:
        if self._demo is not None:
            self._demo.stop(within_s=_STOP_DEMO_WITHIN_S)
            self._demo = None

    def _wait_until_answering(self, api: ChildProcess) -> None:
        address = (self._settings.host, self._settings.port)
        while not self._stop.wait(0.05):
            if (status := api.ended()) is not None:
                raise StartUpFailed(f"the API ended with status {status}: its log above says why")
            with suppress(OSError):
                socket.create_connection(address, timeout=1).close()
                return


def page_url(settings: Settings, *, is_local: bool = False) -> str:
    """URL of the page; of this machine if the server listens on all addresses, or `is_local`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    listening = settings.url_at(host)
    return listening if is_local else settings.public_url or listening


def remote_access_hint(settings: Settings) -> list[str]:
    """A line on how to allow requests from other machines, if that is not configured."""
    if not listens_on_all(settings.host) or settings.allowed_hosts or settings.public_url:
        return []
    return ["From elsewhere: set PACELINE_ALLOWED_HOSTS to the host names of this machine."]


def address_lines(settings: Settings, token: str, *, is_terminal: bool) -> list[str]:
    """URL of the page, and the token or, in a log, which others read, the file that has it."""
    url = page_url(settings)
    if is_terminal:
        return [f"Page:   {url}/#token={token}", f"Token:  {token}"]
    file = settings.token_file
    is_kept = file.exists() and file.read_text().strip() == token
    return [f"Page:   {url}", f"Token:  in {file if is_kept else 'PACELINE_TOKEN'}"]
