"""Decides who is told what: looks at groups of alerts that are due, and fills the outbox.

One transaction reads where a group's alerts stand and what was told of them, and writes the
messages together with the fact that they were told. A crash before its commit repeats it all, one
after it leaves everything to whoever sends.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from app.alerts import planning
from app.alerts.cordon_request import Request, request_for
from app.alerts.formats.registry import refresh_every_s
from app.alerts.plan import Plan, Timing
from app.consumer import messages
from app.consumer.catching_up import catch_up
from app.consumer.cordoner import Cordoner
from app.consumer.desk import Desk
from app.consumer.remembering import begun, remember
from app.consumer.scene import Scene, scene_of
from app.consumer.standings import last_of
from app.errors import LeaseLost, Unavailable
from app.store import alert_groups, muting
from app.store.alert_groups import Group
from app.store.engine import Connection
from app.trace.names import project_of

log = structlog.get_logger()

# Part of what passes between a slow window and its first message: it has two seconds in all.
LOOK_EVERY_S = 0.25
_LEAST_PAUSE_S = 0.02
_AFTER_TROUBLE_S = 5.0
# Longer than planning as many groups takes, with as many alerts, silences and receivers as there
# may be (3 s for each); then another dispatcher may.
_CLAIM_S = 15.0
_AT_ONCE = 4


class Dispatcher:
    """Plans notices; any number of dispatchers share the groups.

    `nudge` is called when there are messages to send.
    """

    def __init__(
        self, desk: Desk, cordoner: Cordoner | None = None, nudge: Callable[[], None] = lambda: None
    ) -> None:
        self._desk = desk
        self._cordoner = cordoner
        self._nudge = nudge

    def run(self, stop: threading.Event) -> None:
        """Plan whatever is due until `stop` is set."""
        pause_s = LOOK_EVERY_S
        while not stop.wait(pause_s):
            pause_s = LOOK_EVERY_S
            try:
                while self.dispatch_due() and not stop.is_set():
                    pass
                pause_s = self._pause_s()
            except Unavailable as error:
                log.warning("no alert planned", reason=str(error))
                pause_s = _AFTER_TROUBLE_S
            except Exception:
                # Its claim lapses; one that cannot be planned must not be the end of all others.
                log.exception("alerts not planned")

    def dispatch_due(self) -> int:
        """Number of groups looked at now.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        with self._desk.store.read() as conn:
            # Most of the time nothing is due, and who only reads holds up nobody.
            if not alert_groups.has_due(conn, now_s=self._desk.database_time(conn)):
                return 0
        with self._desk.store.write() as conn:
            now_s = self._desk.database_time(conn)
            groups = alert_groups.claim(conn, now_s=now_s, lease_s=_CLAIM_S, limit=_AT_ONCE)
        for group in groups:
            self._dispatch(group)
        return len(groups)

    def _pause_s(self) -> float:
        """Until the next group is due, if that is soon: most wait for a second since they woke."""
        with self._desk.store.read() as conn:
            now_s = self._desk.database_time(conn)
            due_s = alert_groups.next_due_s(conn, now_s=now_s)
        if due_s is None:
            return LOOK_EVERY_S
        return min(max(due_s - now_s, _LEAST_PAUSE_S), LOOK_EVERY_S)

    def _dispatch(self, group: Group) -> None:
        try:
            with self._desk.store.write() as conn:
                told = self._tell(conn, group, self._desk.database_time(conn))
        except LeaseLost as error:
            log.info("alerts planned by another", reason=str(error))
            return
        except Unavailable as error:
            self._put_off(group, error)
            return
        except Exception:
            log.exception("alerts not planned", job=group.job_id, rule=group.rule)
            return
        self._after(group, told)

    def _put_off(self, group: Group, error: Unavailable) -> None:
        """One that takes too long, or is locked, must not keep back the others of its batch.

        Where the store itself is away this raises, and they need not be tried.
        """
        log.warning("alerts put off", job=group.job_id, rule=group.rule, reason=str(error))
        with self._desk.store.write() as conn:
            now_s = self._desk.database_time(conn)
            alert_groups.put_off(conn, group, next_at_s=now_s + _CLAIM_S)

    def _tell(self, conn: Connection, group: Group, now_s: float) -> "_Told":
        scene = scene_of(conn, self._desk.rules, group, now_s)
        if scene.rule is None and any(alert.is_firing for alert in scene.alerts):
            # The rule is gone, and its consumer has yet to end its alerts: none of them is news.
            alert_groups.done(
                conn,
                group,
                next_at_s=now_s + self._desk.timing.interval_s,
                last_at_s=None,
                refreshed_at_s=group.refreshed_at_s,
            )
            return _Told(0, None)
        plan = planning.plan(
            scene.alerts,
            last_of(scene.told),
            silences=muting.active(conn, project_of(group.job_id), now_s=now_s),
            inhibited=scene.inhibited,
            last_at_s=group.last_at_s,
            now_s=now_s,
            timing=self._timing(scene),
            refreshed_at_s=group.refreshed_at_s,
        )
        written = messages.write(conn, self._desk, group, scene.receivers, plan.drafts, now_s)
        num_late = catch_up(conn, self._desk, group, scene, plan, now_s)
        fired = begun(plan, scene.told)
        request = self._request(scene, group, plan, fired)
        remember(conn, group, scene, plan, written, () if request is None else fired)
        last_at_s = now_s if written.is_notice and plan.is_notice else None
        alert_groups.done(
            conn,
            group,
            next_at_s=alert_groups.in_time(plan.next_at_s, now_s=now_s),
            last_at_s=last_at_s,
            refreshed_at_s=plan.refreshed_at_s,
        )
        if request is not None and self._cordoner is not None:
            self._cordoner.note(conn, request, now_s)
        return _Told(written.kinds.total() + num_late, request)

    def _timing(self, scene: Scene) -> Timing:
        refresh_s = refresh_every_s(each.format for each in scene.receivers)
        return replace(self._desk.timing, refresh_s=refresh_s)

    def _request(
        self, scene: Scene, group: Group, plan: Plan, fired: Collection[str]
    ) -> Request | None:
        if self._cordoner is None or scene.rule is None:
            return None
        begins = [
            told
            for draft in plan.drafts
            for told in draft.listed
            if told.fingerprint in fired and told.fingerprint in draft.news
        ]
        return request_for(scene.rule, group.job_id, begins)

    def _after(self, group: Group, told: "_Told") -> None:
        if told.num_messages:
            log.info("alerts told", job=group.job_id, rule=group.rule, messages=told.num_messages)
            self._nudge()
        if told.request is not None and self._cordoner is not None:
            self._cordoner.ask(told.request)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a transaction has left to do once it is committed."""

    num_messages: int
    request: Request | None
