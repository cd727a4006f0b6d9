"""Asks the operator's own tool to take workers and hosts away, if it may; else only says so.

At most once for an alert that begins to be told: a crash on the way leaves an audit row that says
what was asked and none that says how it went. To ask twice could take away what was just given
back.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

import structlog

from app.alerts import cordon
from app.alerts.cordon import Hook, Outcome
from app.alerts.cordon_request import Request
from app.alerts.guard.guard import Guard
from app.errors import Unavailable
from app.store import audit, run_hosts
from app.store.engine import Connection, Store
from app.trace.names import plain

log = structlog.get_logger()

ACTOR = "paceline"
_LOOK_EVERY_S = 1.0


class Cordoner:
    """One request at a time, beside whoever asks."""

    def __init__(
        self, store: Store, hook: Hook, guard: Guard, unix_time: Callable[[], float]
    ) -> None:
        self._store = store
        self._hook = hook
        self._guard = guard
        self._unix_time = unix_time
        self._asked: SimpleQueue[Request] = SimpleQueue()

    def note(self, conn: Connection, request: Request, now_s: float) -> None:
        """Write down what is about to be asked, would be, or may not be."""
        refusal = self._hook.refusal(request)
        action = "cordon.would" if self._hook.is_dry_run else "cordon.ask"
        action = "cordon.refused" if refusal else action
        _note(conn, request, action, now_s, refusal or request.reason)
        log.warning(
            "cordon",
            dry_run=self._hook.is_dry_run,
            refused=refusal,
            job=request.job_id,
            action=request.action,
            workers=list(request.workers),
            hosts=list(request.hosts),
            reason=request.reason,
        )

    def ask(self, request: Request) -> None:
        """Ask it soon, if it is meant and may be; call this once the note is committed."""
        if not self._hook.is_dry_run and not self._hook.refusal(request):
            self._asked.put(request)

    def run(self, stop: threading.Event) -> None:
        """Ask whatever is to be asked until `stop` is set."""
        while not stop.is_set():
            try:
                self.ask_next(timeout_s=_LOOK_EVERY_S)
            except Empty:
                continue
            except Unavailable as error:
                log.warning("cordon not written down", reason=str(error))
            except Exception:
                log.exception("cordon failed")

    def ask_next(self, *, timeout_s: float) -> Outcome:
        """How the next request went.

        Raises:
            Empty: there is none within `timeout_s`.
        """
        request = self._disputed(self._asked.get(timeout=timeout_s))
        outcome = cordon.call(self._hook, request, self._guard)
        log.warning("cordon answered", result=outcome.result, detail=outcome.detail)
        with self._store.write() as conn:
            action = f"cordon.{outcome.result}"
            _note(conn, request, action, self._unix_time(), outcome.detail)
        return outcome

    def _disputed(self, request: Request) -> Request:
        """The request with the hosts that others name, too: for the tool, and not for the audit.

        A project must not learn by naming hosts which of them others are on. A database that does
        not answer is no reason to drop what the audit says is asked: the tool is told that nobody
        knows.
        """
        try:
            with self._store.read() as conn:
                found = run_hosts.declared_elsewhere(conn, request.project, request.hosts)
        except Unavailable as error:
            log.warning("cordon asked without knowing disputed hosts", reason=str(error))
            return replace(request, disputed_hosts=None)
        return replace(request, disputed_hosts=sorted(found))


def _note(conn: Connection, request: Request, action: str, now_s: float, words: str) -> None:
    audit.add(
        conn,
        project=request.project,
        at_s=now_s,
        actor=ACTOR,
        action=action,
        object_kind="job",
        object_id=plain(request.job_id),
        detail={
            "asked": request.action,
            "rule": request.rule,
            "workers": list(request.workers),
            "hosts": list(request.hosts),
            "detail": words,
        },
    )
