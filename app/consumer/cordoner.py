"""Calls the operator's cordon hook to take workers and hosts away; in a dry run only audits it.

At most once per firing of an alert. A crash on the way leaves an audit row of the request and none
of its result: a second call could take away hosts that were just given back.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

import structlog

from app.alerts import cordon
from app.alerts.cordon import CordonHook, CordonRequest, CordonResult
from app.alerts.guard import SsrfGuard
from app.errors import Unavailable
from app.store import audit, hosts
from app.store.database import Connection, Store
from app.trace.job import job_of

log = structlog.get_logger()

_CHECK_EVERY_S = 1.0


class Cordoner:
    """Makes one request at a time, in a thread of its own."""

    def __init__(
        self, store: Store, hook: CordonHook, guard: SsrfGuard, unix_time: Callable[[], float]
    ) -> None:
        self._store = store
        self._hook = hook
        self._guard = guard
        self._unix_time = unix_time
        self._asked: SimpleQueue[CordonRequest] = SimpleQueue()

    def note(self, conn: Connection, request: CordonRequest, now_s: float) -> None:
        """Audit a request: to be made, refused, or of a dry run."""
        refusal = self._hook.refusal(request)
        action = "cordon.would" if self._hook.is_dry_run else "cordon.ask"
        action = "cordon.refused" if refusal else action
        _audit(conn, request, action, now_s, refusal or request.reason)
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

    def ask(self, request: CordonRequest) -> None:
        """Queue the request, unless refused or a dry run; call it once the note is committed."""
        if not self._hook.is_dry_run and not self._hook.refusal(request):
            self._asked.put(request)

    def run(self, stop: threading.Event) -> None:
        """Make queued requests until `stop` is set."""
        while not stop.is_set():
            try:
                self.ask_next(timeout_s=_CHECK_EVERY_S)
            except Empty:
                continue
            except Unavailable as error:
                log.warning("cordon not saved", reason=str(error))
            except Exception:
                log.exception("cordon failed")

    def ask_next(self, *, timeout_s: float) -> CordonResult:
        """Make the next request; returns its result.

        Raises:
            Empty: no request within `timeout_s`.
        """
        request = self._disputed(self._asked.get(timeout=timeout_s))
        outcome = cordon.call_cordon_hook(self._hook, request, self._guard)
        log.warning("cordon answered", result=outcome.result, detail=outcome.detail)
        with self._store.write() as conn:
            action = f"cordon.{outcome.result}"
            _audit(conn, request, action, self._unix_time(), outcome.detail)
        return outcome

    def _disputed(self, request: CordonRequest) -> CordonRequest:
        """The request with its disputed hosts: those that other projects name, too.

        Only the hook gets them, not the audit: a project must not learn which hosts others use.
        If the database does not answer, they are None (unknown), and the request is still made.
        """
        try:
            with self._store.read() as conn:
                disputed = hosts.named_by_other_projects(conn, request.project, request.hosts)
        except Unavailable as error:
            log.warning("cordon asked, disputed hosts unknown", reason=str(error))
            return replace(request, disputed_hosts=None)
        return replace(request, disputed_hosts=sorted(disputed))


def _audit(conn: Connection, request: CordonRequest, action: str, now_s: float, words: str) -> None:
    audit.add(
        conn,
        project=request.project,
        at_s=now_s,
        action=action,
        object_kind="job",
        object_id=job_of(request.job_id),
        detail={
            "asked": request.action,
            "rule": request.rule,
            "workers": list(request.workers),
            "hosts": list(request.hosts),
            "detail": words,
        },
    )
