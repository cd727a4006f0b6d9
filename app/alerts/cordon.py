"""Hand a slow worker's host to the operator's own tool, once an alert fires: only if told to.

Paceline itself takes no host out of service. The environment names a command or a URL; a rule
names what it is to do. The environment also says whose rules may ask, and for what: the tool is
the operator's, and every project writes its own rules. Unless it is meant, nothing is called and
the log and the audit say what would have been.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import httpcore

from app.alerts.cordon_request import MOST_WORKERS, Request
from app.alerts.guard.guard import Guard
from app.errors import Blocked

TIMEOUT_S = 10.0
# More than this at once is no failing host: whatever it is, taking them all away makes it worse.
MOST_HOSTS = 10
_MOST_DETAIL_BYTES = 500

Result = Literal["done", "failed"]
_HEADERS = {"content-type": "application/json", "user-agent": "Paceline"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the tool was called and did it; `detail` is for people."""

    result: Result
    detail: str


@dataclass(frozen=True, slots=True)
class Hook:
    """The operator's tool: a command line or a URL. In a dry run neither is called.

    Rules of `projects` may ask for `actions`; both are patterns with * and ?, and none is nobody.
    """

    command: Sequence[str] = ()
    url: str | None = None
    is_dry_run: bool = True
    projects: Sequence[str] = ()
    actions: Sequence[str] = ()
    timeout_s: float = TIMEOUT_S  # of the command; the guard has its own

    def refusal(self, request: Request) -> str | None:
        """Why the operator does not let this be asked for; None where they do."""
        if not _is_among(request.project, self.projects):
            return "the operator lets no rule of this project ask: PACELINE_CORDON_PROJECTS"
        if not _is_among(request.action, self.actions):
            return "the operator lets no rule ask for this action: PACELINE_CORDON_ACTIONS"
        return None


def call(hook: Hook, request: Request, guard: Guard) -> Outcome:
    """Ask the operator's tool; whatever goes wrong is in the outcome.

    `guard` lets the operator's own URL be anywhere.
    """
    if len(request.hosts) > MOST_HOSTS or len(request.workers) > MOST_WORKERS:
        return Outcome(
            "failed",
            f"{len(request.hosts)} hosts and {len(request.workers)} workers at once are too many "
            f"(at most {MOST_HOSTS} and {MOST_WORKERS}): nothing was called",
        )
    if hook.url is not None:
        return _posted(guard, hook.url, request.body())
    return _run(hook, request.body())


def _posted(guard: Guard, url: str, body: str) -> Outcome:
    try:
        reply = guard.post(url, headers=_HEADERS, body=body.encode())
    except Blocked as refusal:
        return Outcome("failed", f"blocked: {refusal}")
    except httpcore.TimeoutException:
        return Outcome("failed", "no answer in time")
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        return Outcome("failed", f"not reached: {type(error).__name__}")
    said = f"HTTP {reply.status} {_printable(reply.beginning)}".rstrip()
    return Outcome("done" if 200 <= reply.status < 300 else "failed", said)


def _run(hook: Hook, body: str) -> Outcome:
    """Run it without a shell; what comes from workers reaches it on its input alone."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603
                list(hook.command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            return Outcome("failed", f"it could not be started: {error.strerror}")
        status = _ended(process, body, hook.timeout_s)
        output.seek(0)
        said = _printable(output.read(_MOST_DETAIL_BYTES))
    if status is None:
        return Outcome("failed", f"it had not ended after {hook.timeout_s:g} s")
    if status:
        return Outcome("failed", f"it ended with status {status}: {said}".rstrip(": "))
    return Outcome("done", said)


def _ended(process: "subprocess.Popen[bytes]", body: str, timeout_s: float) -> int | None:
    """Its exit status; None if it was ended, with all that it had started, for want of one."""
    try:
        process.communicate(body.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return process.returncode


def _environment() -> dict[str, str]:
    """Ours without our own secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _printable(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return "".join(each if each.isprintable() else " " for each in shown).strip()
