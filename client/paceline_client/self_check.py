"""Checks server, token, topology and clocks, without changing anything."""

from __future__ import annotations

import email.utils
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import topology as topologies
from .recording.nvml import GpuReadings
from .recording.timing import wall_clock_anchor
from .recording.wire import CONTENT_TYPE
from .run_keys import is_initialised
from .sending.transport import Answer, Transport, Unreachable, job_path

GOOD, BAD, UNKNOWN = "ok", "WRONG", "-"
TIMEOUT_S = 5.0
NO_JOB = "paceline-check"  # used for the check if no job is given
CLOCK_DOUBT_S = 1.0  # the server's Date has no fractions

Line = tuple[str, str]  # a verdict and its reason


def check(
    url: str | None = None,
    token: str | None = None,
    job: str | None = None,
    topology: Any = None,
) -> str:
    """A short report; arguments default to the environment, as in `start`.

    Registers and records nothing, and does not show the token.
    """
    return "\n".join(
        f"{name:<9}{verdict:<7}{reason}"
        for name, (verdict, reason) in _lines(
            url or os.environ.get("PACELINE_URL"),
            token or os.environ.get("PACELINE_TOKEN"),
            job or os.environ.get("PACELINE_JOB"),
            topology,
        )
    )


def is_good(report: str) -> bool:
    """Whether nothing in a report is wrong."""
    return not any(line[9:].startswith(BAD) for line in report.splitlines())


def _lines(
    url: str | None, token: str | None, job: str | None, topology: Any
) -> Iterator[tuple[str, Line]]:
    health = _request(url, token, "GET", "/healthz")
    yield "server", _server(url, health)
    yield "token", _token(url, token, job)
    yield "topology", _never_raises(lambda: _topology(topology))
    yield "clocks", _clocks(health)
    yield "timing", _never_raises(_timing)
    yield "gpu", _never_raises(_gpu)


def _request(url: str | None, token: str | None, method: str, path: str) -> Answer | str:
    """The server's answer, or why there is none."""
    if not url:
        return "no address: give url=, or set PACELINE_URL"
    transport = Transport(url, token or "none", TIMEOUT_S)
    try:
        return transport.request(method, path, b"", CONTENT_TYPE)
    except (Unreachable, ValueError) as error:
        # A URL may contain a password.
        return _redacted(str(error), token)
    finally:
        transport.close()


def _server(url: str | None, health: Answer | str) -> Line:
    if isinstance(health, str):
        return BAD, health
    if health.ok and health.json().get("status"):
        return GOOD, f"answers in {health.took_s * 1000:.0f} ms"
    return BAD, f"the answer is {health.status}, and not from Paceline"


def _token(url: str | None, token: str | None, job: str | None) -> Line:
    """Send an invalid batch: with a good token it is refused as invalid."""
    if not token:
        return BAD, "none: give token=, or set PACELINE_TOKEN"
    if not _is_text(job or ""):
        return BAD, f"not checked: job {job!r} is not valid text"
    answer = _request(url, token, "POST", job_path(job or NO_JOB, "/ops"))
    if isinstance(answer, str):
        return UNKNOWN, "not checked: no server"
    if answer.status in (400, 404, 415, 422) and not job:
        return GOOD, "known; give job= or PACELINE_JOB to check the job"
    if answer.status in (400, 415, 422):
        return GOOD, f"may send operations of job {job!r}"
    if answer.status == 404:
        return GOOD, f"known; job {job!r} is not registered yet, or not this token's"
    return BAD, _redacted(answer.detail, token)


def _topology(topology: Any) -> Line:
    where = topology if topology is not None else topologies.from_torch()
    problem = getattr(where, "problem", None)
    if problem:
        return BAD, problem
    world_size = int(os.environ.get("WORLD_SIZE") or where.world_size)
    if world_size != where.world_size:
        return BAD, f"{where!r}, but WORLD_SIZE is {world_size}"
    return GOOD, repr(where) + ("" if topology is not None else f" ({_found_by()})")


def _found_by() -> str:
    """The source of a default topology."""
    if is_initialised():
        return "as torch.distributed tells"
    if os.environ.get("RANK") or os.environ.get("WORLD_SIZE"):
        return "by RANK and WORLD_SIZE of the environment, without stages"
    return "a job of one process: no RANK, no WORLD_SIZE, and torch.distributed is not up"


def _clocks(health: Answer | str) -> Line:
    now_s, width_ns = time.time(), wall_clock_anchor().width_ns
    date = None if isinstance(health, str) else health.date
    sent = None if date is None else email.utils.parsedate_tz(date)
    if sent is None:
        return UNKNOWN, f"read to {width_ns / 1000:.1f} us; the server does not tell its own"
    ahead_s = now_s - email.utils.mktime_tz(sent)
    if -CLOCK_DOUBT_S <= ahead_s <= CLOCK_DOUBT_S + TIMEOUT_S:
        return GOOD, f"within a second or so of the server's; read to {width_ns / 1000:.1f} us"
    return GOOD, (
        f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's: "
        "figures do not mind, timelines of several hosts may"
    )


def _timing() -> Line:
    torch = sys.modules.get("torch")
    if torch is None:
        return GOOD, "by this host's clock (PyTorch has not been imported)"
    if not torch.cuda.is_available():
        return GOOD, "by this host's clock (PyTorch finds no CUDA)"
    return GOOD, f"by CUDA events, on {torch.cuda.get_device_name()}"


def _gpu() -> Line:
    readings = GpuReadings()
    readings.place()
    readings.poll()
    found = readings.take()
    if not found:
        return UNKNOWN, "no readings of a GPU here"
    return GOOD, ", ".join(f"{name} {value}" for name, value in found.items())


def _never_raises(check_line: Callable[[], Line]) -> Line:
    try:
        return check_line()
    except Exception as error:
        return UNKNOWN, f"unknown: {type(error).__name__}: {error}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
        return True
    except UnicodeEncodeError:  # bytes of the environment that are not UTF-8
        return False


def _redacted(text: str, token: str | None) -> str:
    """The text in one line, without the token and control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return shown.replace(token, "...") if token else shown


def main() -> int:
    """Print the report; 1 if something in it is wrong."""
    report = check()
    charset = sys.stdout.encoding or "utf-8"  # which may lack some characters
    sys.stdout.write(report.encode(charset, "backslashreplace").decode(charset) + "\n")
    return 0 if is_good(report) else 1
