"""A small process beside a training process, which tells the server how that one ended.

A process that is killed cannot say so. This one is started once per training process by
`process_end.py`, as a script, and waits in the kernel: it uses no CPU time. It learns of the end
from a socket and from the process itself, sends one request per recorder, and ends.

Lines from the socket are JSON objects about the recorder `id`: `watch` (where to report, and the
fields of the report), `end` (how the recorder ended) or `forget`. Any other text is what
`faulthandler` writes when the training process receives SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
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

Report = dict[str, Any]


def main(pid: int) -> None:
    """Watch the process until it has ended and was reported."""
    if os.fork():  # nobody has to wait for an orphan
        os._exit(0)
    _close_inherited()
    Watcher(pid).run()


class Watcher:
    """What is known of one training process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._socket = socket.socket(fileno=0)
        self._watched: dict[int, dict[str, Any]] = {}
        self._doubtful: list[dict[str, Any]] = []  # said to be finished, before the exit status
        self._is_terminated = False
        self._text = b""

    def run(self) -> None:
        """Read lines until the process has ended, then report for all recorders that are left."""
        process = _opened(self._pid)
        sources = [0] if process is None else [0, process]
        while True:
            timeout_s = POLL_S if process is None else None
            ready = select.select(sources, [], [], timeout_s)[0]
            if 0 in ready and not self._read():
                break
            if process in ready or (process is None and not _is_alive(self._pid)):
                while select.select([0], [], [], 0)[0] and self._read():
                    pass
                break
        if (self._watched or self._doubtful) and self._has_ended(process):
            self._report_end()

    def _read(self) -> bool:
        """Take in what is in the socket; False at its end."""
        try:
            data, sender = self._received()
        except OSError:  # reset
            data, sender = b"", None
        if data and sender not in (None, self._pid):
            return True  # a forked child got SIGTERM before it could let go of the socket
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def _received(self) -> tuple[bytes, int | None]:
        """What is in the socket from one process, and which that is; None where it is not told."""
        data, told, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(CREDENTIALS.size))
        for level, kind, content in told:
            if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", None):
                return data, int(CREDENTIALS.unpack(content[: CREDENTIALS.size])[0])
        return data, None

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            self._is_terminated = self._is_terminated or bool(line.strip())
            return
        message = json.loads(line)
        key = message["id"]
        if "watch" in message:
            self._watched[key] = message["watch"]
            return
        watched = self._watched.pop(key, None)
        if watched is not None and "end" in message:
            end = message["end"]
            if self._is_terminated:
                end = {**end, "outcome": "terminated", "signal": int(signal.SIGTERM)}
            deliver(watched, end, REPORT_WITHIN_S)
            if message.get("at_exit") and end["outcome"] == "finished":
                self._doubtful.append(watched)
        _write(DELIVERED)

    def _has_ended(self, process: int | None) -> bool:
        """Whether the process has ended, and not only closed the socket."""
        until_s = time.monotonic() + ENDING_S
        while time.monotonic() < until_s:
            if process is not None and select.select([process], [], [], ENDING_S)[0]:
                return True
            if process is None and not _is_alive(self._pid):
                return True
            time.sleep(0.01)
        return False

    def _report_end(self) -> None:
        end = _end_of(self._pid)
        if self._is_terminated:
            end = {"outcome": "terminated", "signal": int(signal.SIGTERM)}
        if end["outcome"] in ("failed", "killed"):
            end = {**end, **elastic_error()}
        if "exit_code" in end or "signal" in end:
            for watched in self._doubtful:
                deliver(watched, end, REPORT_WITHIN_S)
        for watched in self._watched.values():
            if end["outcome"] != "finished" or watched["ends_job"]:
                deliver(watched, end, REPORT_WITHIN_S)


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


def _end_of(pid: int) -> Report:
    """How the process ended, if its parent has not asked for it yet: then only the kernel knew."""
    for _ in range(20):
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            break
        if fields[0] == b"Z":
            return _end_of_status(int(fields[49]))
        time.sleep(0.002)
    return {"outcome": "killed"}


def _end_of_status(status: int) -> Report:
    code, number = status >> 8, status & 0x7F
    if number == signal.SIGTERM:
        return {"outcome": "terminated", "signal": number}
    if number:
        return {"outcome": "killed", "signal": number}
    return {"outcome": "failed", "exit_code": code} if code else {"outcome": "finished"}


def _opened(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None on older kernels."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


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


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it
        os.write(0, data)


def _close_inherited() -> None:
    """Close what the training process has left open for its children: sockets, files, devices."""
    try:
        descriptors = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    except OSError:
        descriptors = list(range(3, 256))
    for descriptor in descriptors:
        if descriptor > 2:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
