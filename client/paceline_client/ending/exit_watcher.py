"""A small process beside a training process, which tells the server how that one ended.

A process that is killed cannot say so. This one is started once per training process by
`process_end.py`, as a script, and waits in the kernel: it uses no CPU time. It learns of the end
from a socket and from the process itself, sends one request per recorder, and ends.

Lines from the first socket are JSON objects about the recorder `id`: `watch` (where to report, and
the fields of the report), `end` (how the recorder ended) or `forget`. In the second is what
`faulthandler` writes when the training process receives SIGTERM.

It is started with all signals blocked: one to all processes of a service, a Slurm step or a user
is no reason to end before it has reported.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

REPORT_WITHIN_S = 30.0  # then the server stays untold
POLL_S = 1.0  # for the end of the process, where the kernel does not tell
ENDING_S = 30.0  # between the end of the socket and that of the process
MAX_ERROR_FILE_BYTES = 1 << 20
MAX_MESSAGE = 500
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
DELIVERED = b"."
CREDENTIALS = struct.Struct("3i")  # of a socket's sender: process, user, group
LINES, SIGNALS, PROCESS = 0, 1, 3  # descriptors of the two sockets, and of the process
STATUS_WITHIN_S = 0.5  # after the end, until the kernel tells how

# Of Linux's include/uapi/linux/pidfd.h, as of 6.15: _IOWR(0xFF, 11, struct pidfd_info).
PIDFD_INFO = struct.Struct("2Q11Ii")  # its mask first, the wait status last
PIDFD_GET_INFO = 3 << 30 | PIDFD_INFO.size << 16 | 0xFF << 8 | 11
PIDFD_INFO_EXIT = 1 << 3
PF_EXITING = 4

CGROUPS = Path("/sys/fs/cgroup")

Report = dict[str, Any]


def main(pid: int, *, has_descriptor: bool) -> None:
    """Watch the process until it has ended and was reported.

    `has_descriptor`: `PROCESS` is one that is readable once the process has ended. It is of the
    right process even where that ended, and its number was given away, before this one began.
    """
    if os.fork():  # nobody has to wait for an orphan
        os._exit(0)
    kept = PROCESS if has_descriptor else 2
    _close_inherited(above=kept)
    sockets = socket.socket(fileno=LINES), socket.socket(fileno=SIGNALS)
    Watcher(pid, *sockets, PROCESS if has_descriptor else None).run()


class Watcher:
    """What is known of one training process."""

    def __init__(
        self, pid: int, lines: socket.socket, signals: socket.socket, process: int | None
    ) -> None:
        self._pid = pid
        self._process = process  # a descriptor; None on Linux before 5.3
        self._lines = lines
        self._signals = signals
        self._oom_kills = _oom_kills()
        self._watched: dict[int, dict[str, Any]] = {}
        self._doubtful: list[dict[str, Any]] = []  # said to be finished, before the exit status
        self._is_terminated = False
        self._text = b""
        self._deliver_until_s = self._delivered_s = -math.inf
        self._status: int | None = None  # of the process, once known

    def run(self) -> None:
        """Read lines until the process has ended, then report for all recorders that are left."""
        process = self._process
        sources: list[Any] = [self._lines] if process is None else [self._lines, process]
        while True:
            timeout_s = POLL_S if process is None else None
            ready = select.select(sources, [], [], timeout_s)[0]
            if self._lines in ready and not self._read():
                self._status = _status_in_proc(self._pid)  # before its parent can ask for it
                break
            if process in ready or (process is None and not _is_alive(self._pid)):
                while select.select([self._lines], [], [], 0)[0] and self._read():
                    pass
                break
        if (self._watched or self._doubtful) and self._has_ended():
            self._report_end()

    def _read(self) -> bool:
        """Take in what is in the socket of lines; False at its end."""
        try:
            data = self._lines.recv(65536)
        except OSError:  # reset
            data = b""
        self._notice_sigterm()  # which came before these lines
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def _notice_sigterm(self) -> None:
        """Whether the process has got SIGTERM by now.

        A forked child may have got it as well, before it could let go of the socket.
        """
        flags, space = socket.MSG_DONTWAIT, socket.CMSG_SPACE(CREDENTIALS.size)
        with contextlib.suppress(OSError):  # nothing more
            while True:
                data, told, _, _ = self._signals.recvmsg(65536, space, flags)
                if not data:
                    return
                if _sender(told) in (None, self._pid):
                    self._is_terminated = True

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:  # one of which only a part had room in the socket
            return
        key = message["id"]
        if "watch" in message:
            self._watched[key] = message["watch"]
            return
        watched = self._watched.pop(key, None)
        if watched is not None and "end" in message:
            end = message["end"]
            if self._is_terminated:
                end = {**end, "outcome": "terminated", "signal": int(signal.SIGTERM)}
            self._deliver(watched, end)
            if message.get("at_exit") and end["outcome"] == "finished":
                self._doubtful.append(watched)
        with contextlib.suppress(OSError):  # the training does not wait for it
            self._lines.send(DELIVERED)

    def _has_ended(self) -> bool:
        """Whether the process has ended, and not only closed the socket."""
        process = self._process
        until_s = time.monotonic() + ENDING_S
        while time.monotonic() < until_s:
            if process is not None and select.select([process], [], [], ENDING_S)[0]:
                return True
            if process is None and not _is_alive(self._pid):
                return True
            time.sleep(0.01)
        return False

    def _deliver(self, watched: dict[str, Any], end: Report) -> None:
        """Send a report, if the server has answered any within REPORT_WITHIN_S.

        One process may have hundreds of recorders: the time is for all whose reports follow one
        another, or their watcher would go on for hours without a server.
        """
        began_s = time.monotonic()
        if began_s - self._delivered_s > REPORT_WITHIN_S:
            self._deliver_until_s = began_s + REPORT_WITHIN_S
        left_s = self._deliver_until_s - began_s
        if left_s <= 0:
            return
        is_answered = deliver(watched, end, left_s)
        self._delivered_s = time.monotonic()
        if is_answered:
            self._deliver_until_s = self._delivered_s + REPORT_WITHIN_S

    def _report_end(self) -> None:
        self._notice_sigterm()
        self._delivered_s = -math.inf  # how the process ended is worth the time again
        status = self._status if self._status is not None else _status_of(self._pid, self._process)
        if status is not None:
            end = _end_of_status(status)
        elif _oom_kills() > self._oom_kills:
            end = {"outcome": "killed", "signal": int(signal.SIGKILL)}
        else:
            end = {"outcome": "ended"}
        if self._is_terminated:
            end = {"outcome": "terminated", "signal": int(signal.SIGTERM)}
        if end["outcome"] in ("failed", "killed", "ended"):
            end = {**end, **elastic_error()}
        if "exit_code" in end or "signal" in end:
            for watched in self._doubtful:
                self._deliver(watched, end)
        for watched in self._watched.values():
            # What may have been a success ends no job that is not to end by that.
            if end["outcome"] not in ("finished", "ended") or watched["ends_job"]:
                self._deliver(watched, end)


def _sender(told: list[tuple[int, int, bytes]]) -> int | None:
    """Process id of the sender, from ancillary data of a socket; None without credentials."""
    for level, kind, content in told:
        if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", None):
            return int(CREDENTIALS.unpack(content[: CREDENTIALS.size])[0])
    return None


def deliver(watched: dict[str, Any], end: Report, within_s: float) -> bool:
    """Send one report, with retries; whether the server has answered it."""
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    from paceline_client.sending.transport import Transport, Unreachable

    until_s, delay_s = time.monotonic() + within_s, 0.2
    body = {**watched["report"], **end}
    while (left_s := until_s - time.monotonic()) > 0:
        transport = Transport(watched["url"], watched["token"], max(0.1, min(5.0, left_s)))
        try:
            answer = transport.request("POST", watched["path"], body, "application/json")
            if answer.ok and "job_state" in answer.json():
                return True
            if not answer.retryable:  # as by a server of before this route
                return False
        except Unreachable:
            pass
        finally:
            transport.close()
        time.sleep(max(0.0, min(delay_s, until_s - time.monotonic())))
        delay_s *= 2
    return False


def elastic_error() -> Report:
    """The exception that torchrun's `record` has written to its error file; empty without."""
    try:
        with Path(os.environ[ERROR_FILE]).open("rb") as file:
            told = json.loads(file.read(MAX_ERROR_FILE_BYTES))["message"]
        text = told if isinstance(told, str) else told["message"]
        kind, _, rest = str(text).partition(": ")
        is_kind = bool(rest) and kind.replace(".", "").isidentifier()
        found = {"error_type": kind[:200], "message": rest} if is_kind else {"message": str(text)}
        return {"outcome": "failed", **found, "message": found["message"][:MAX_MESSAGE]}
    except Exception:  # no file, or one of another version
        return {}


def _status_of(pid: int, process: int | None) -> int | None:
    """Wait status of a process that has ended; None where only its parent has received it.

    That is on Linux before 6.15, if the parent asked first, as shells, `srun` and
    `subprocess.run` do that wait for nothing else.
    """
    until_s = time.monotonic() + STATUS_WITHIN_S
    while True:
        is_there = Path(f"/proc/{pid}").exists()
        status = None if process is None else _status_of_reaped(process)
        if status is None:
            status = _status_in_proc(pid)
        if status is not None or not is_there or time.monotonic() > until_s:
            return status
        time.sleep(0.002)


def _status_in_proc(pid: int) -> int | None:
    """Wait status of a process that is ending or a zombie; None of any other."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        is_ending = fields[0] == b"Z" or int(fields[6]) & PF_EXITING
        return int(fields[49]) if is_ending else None
    except (OSError, ValueError, IndexError):
        return None


def _status_of_reaped(process: int) -> int | None:
    """Wait status that the kernel still has for the descriptor of a process; None if it has not."""
    try:
        import fcntl

        info = bytearray(PIDFD_INFO.size)
        struct.pack_into("Q", info, 0, PIDFD_INFO_EXIT)
        fcntl.ioctl(process, PIDFD_GET_INFO, info)
    except (ImportError, OSError):  # not Linux, or one that does not know the request
        return None
    mask, *_, status = PIDFD_INFO.unpack(info)
    return int(status) if mask & PIDFD_INFO_EXIT else None


def _oom_kills() -> int:
    """How many processes of this container, service or job were killed for lack of memory."""
    try:
        path = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0]
        events = (CGROUPS / path.lstrip("/") / "memory.events").read_text()
        return int(events.partition("oom_kill ")[2].split()[0])
    except (OSError, ValueError, IndexError):  # not in one, or of another kernel
        return 0


def _end_of_status(status: int) -> Report:
    code, number = status >> 8, status & 0x7F
    if number == signal.SIGTERM:
        return {"outcome": "terminated", "signal": number}
    if number:
        return {"outcome": "killed", "signal": number}
    return {"outcome": "failed", "exit_code": code} if code else {"outcome": "finished"}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return not Path("/proc/self").is_dir()


def _close_inherited(above: int) -> None:
    """Close what the training process has left open for its children: sockets, files, devices."""
    try:
        descriptors = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    except OSError:
        descriptors = list(range(3, 256))
    for descriptor in descriptors:
        if descriptor > above:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]), has_descriptor="pidfd" in sys.argv[2:])
