"""The dispatcher: plans the alert groups that are due, and writes messages to the outbox.

One transaction reads a group's alerts and their last notifications, and writes the new messages
and last notifications. A crash before its commit repeats it all; after it, the sender goes on.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import structlog

from app.alerts.addressing import notices_for
from app.alerts.cordon import CordonRequest, cordon_request_for
from app.alerts.formats.registry import format_takes, refresh_every_s
from app.alerts.notice import NoticeGroup
from app.alerts.picture_links import KEY_NAME, SignedPictureLinks
from app.alerts.planning import Draft, DraftKind, LastNotified, NotificationPlan, plan_notifications
from app.alerts.receiver import Receiver
from app.consumer.context import NotifyContext
from app.consumer.cordoner import Cordoner
from app.consumer.fix_outcomes import hand_over, write_outcomes
from app.consumer.group_snapshot import GroupSnapshot, notification_rows, read_snapshot
from app.consumer.sender import write_message
from app.errors import LeaseLost, SecretsLocked, Unavailable
from app.store import as_of, jobs, service_state
from app.store.alerting import notifications, silences
from app.store.alerting.notifications import AlertGroup, LastNotification
from app.store.database import Connection
from app.trace.job import project_of

log = structlog.get_logger()

# Part of the two seconds allowed between a slow window and its first message: for what this process
# is woken for, and for what other processes have changed.
POLL_S = 0.25
CHECK_EVERY_S = 1.0
_MIN_PAUSE_S = 0.02
_PAUSE_AFTER_ERROR_S = 5.0
# Longer than planning _MAX_GROUPS groups with the maximum of alerts, silences and receivers (3 s
# each); then another dispatcher may claim them.
_CLAIM_S = 15.0
_MAX_GROUPS = 4
# How soon a group is looked at again whose job's data is not processed yet.
_HELD_FOR_S = 2.0
# Then it is planned all the same: receivers that forget are refreshed every 5 minutes.
_REFRESHED_WITHIN_S = 240.0


class Dispatcher:
    """Plans notifications; any number of dispatchers share the groups.

    `nudge` is called when there are messages to send.
    """

    def __init__(
        self,
        context: NotifyContext,
        cordoner: Cordoner | None = None,
        nudge: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._cordoner = cordoner
        self._nudge = nudge
        self._woken = threading.Event()

    def wake(self) -> None:
        """Look soon: this process has woken a group."""
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        """Plan due groups until `stop` is set."""
        pause_s = 0.0
        while not stop.wait(max(min(pause_s, POLL_S), _MIN_PAUSE_S)):
            pause_s -= POLL_S
            if pause_s > 0 and not self._woken.is_set():
                continue
            self._woken.clear()
            pause_s = CHECK_EVERY_S
            try:
                while self.dispatch_due() and not stop.is_set():
                    pass
                pause_s = self._pause_s()
            except Unavailable as error:
                log.warning("no alert planned", reason=str(error))
                pause_s = _PAUSE_AFTER_ERROR_S
            except Exception:
                # Its claim lapses; the other groups go on.
                log.exception("alerts not planned")

    def dispatch_due(self) -> int:
        """Plan the due groups; returns their number. Raises StoreUnavailable."""
        with self._context.store.read() as conn:
            # Mostly nothing is due, and reading locks nothing.
            if not notifications.has_due_group(conn, now_s=self._context.database_time(conn)):
                return 0
        with self._context.store.write() as conn:
            now_s = self._context.database_time(conn)
            groups = notifications.claim_groups(
                conn, now_s=now_s, lease_s=_CLAIM_S, limit=_MAX_GROUPS
            )
        for group in groups:
            self._dispatch(group)
        return len(groups)

    def _pause_s(self) -> float:
        """Time until the next group is due, at most CHECK_EVERY_S."""
        with self._context.store.read() as conn:
            now_s = self._context.database_time(conn)
            due_s = notifications.next_due_s(conn, now_s=now_s)
        if due_s is None:
            return CHECK_EVERY_S
        return min(max(due_s - now_s, _MIN_PAUSE_S), CHECK_EVERY_S)

    def _dispatch(self, group: AlertGroup) -> None:
        try:
            with self._context.store.write() as conn:
                now_s = self._context.database_time(conn)
                number, request = self._plan_and_write(conn, group, now_s)
        except LeaseLost as error:
            log.info("alerts planned by another", reason=str(error))
            return
        except Unavailable as error:
            log.warning("alerts postponed", job=group.job_id, rule=group.rule, reason=str(error))
            # It is locked or takes too long, and must not delay the others. Raises Unavailable if
            # the store itself is away.
            with self._context.store.write() as conn:
                next_at_s = self._context.database_time(conn) + _CLAIM_S
                notifications.postpone_group(conn, group, next_at_s=next_at_s)
            return
        except Exception:
            log.exception("alerts not planned", job=group.job_id, rule=group.rule)
            return
        if number:
            log.info("notifications written", job=group.job_id, rule=group.rule, messages=number)
            self._nudge()
        if request is not None and self._cordoner is not None:
            self._cordoner.ask(request)

    def _plan_and_write(
        self, conn: Connection, group: AlertGroup, now_s: float
    ) -> tuple[int, CordonRequest | None]:
        """How many messages were written, and the request to make once that is committed."""
        was_held = group.held_since_s is not None
        processed = as_of.read(conn, num_shards=self._context.num_shards, now_s=now_s)
        progress = processed.of(group.job_id)
        refreshed_before_s = now_s - (group.refreshed_at_s or 0.0)
        if was_held and progress.is_behind and 0 <= refreshed_before_s < _REFRESHED_WITHIN_S:
            # Planning it would cost the database that consumers need to catch up.
            _leave(conn, group, next_at_s=now_s + _HELD_FOR_S)
            return 0, None
        snapshot = read_snapshot(conn, self._context.default_rules, group, now_s)
        if snapshot.rule is None or (snapshot.rule.on != "fix-outcome" and not snapshot.alerts):
            # Its name may have been that of the rule on outcomes.
            hand_over(conn, self._context, group, now_s)
        if snapshot.rule is None and any(alert.is_firing for alert in snapshot.alerts):
            # The rule was removed, and the consumer has yet to resolve its alerts: not news.
            _leave(conn, group, next_at_s=now_s + self._context.timing.interval_s)
            return 0, None
        if snapshot.rule is not None and snapshot.rule.on == "fix-outcome":
            receivers = snapshot.receivers
            return write_outcomes(conn, self._context, group, snapshot.rule, receivers, now_s), None
        refresh_s = refresh_every_s(receiver.format for receiver in snapshot.receivers)
        plan = plan_notifications(
            snapshot.alerts,
            snapshot.notified,
            silences=silences.active(conn, project_of(group.job_id), now_s=now_s),
            inhibited=snapshot.inhibited,
            # Messages that have waited do not wait for the group's next turn, too.
            last_at_s=None if was_held else group.last_at_s,
            now_s=now_s,
            timing=replace(self._context.timing, refresh_s=refresh_s),
            refreshed_at_s=group.refreshed_at_s,
            is_held=progress.is_behind,
        )
        sending = Sending(conn, self._context, group, now_s, progress.at_s)
        written = sending.write(snapshot.receivers, plan.drafts)
        num_late = 0 if progress.is_behind else notify_new_receivers(sending, snapshot, plan)
        fired = newly_firing(plan, snapshot.notified)
        request = self._request(snapshot, group, plan, fired)
        save_notified(conn, group, snapshot, plan, written, () if request is None else fired)
        last_at_s = now_s if written.is_notice and plan.is_notice else None
        notifications.release(
            conn,
            group,
            next_at_s=now_s + _HELD_FOR_S
            if progress.is_behind
            else notifications.limit_wait(plan.next_at_s, now_s=now_s),
            last_at_s=last_at_s,
            refreshed_at_s=plan.refreshed_at_s,
            held_since_s=_held_since_s(group, snapshot, now_s, is_behind=progress.is_behind),
        )
        if request is not None and self._cordoner is not None:
            self._cordoner.note(conn, request, now_s)
        return written.num_by_kind.total() + num_late, request

    def _request(
        self,
        snapshot: GroupSnapshot,
        group: AlertGroup,
        plan: NotificationPlan,
        fired: Collection[str],
    ) -> CordonRequest | None:
        if self._cordoner is None or snapshot.rule is None:
            return None
        begins = [
            alert
            for draft in plan.drafts
            for alert in draft.listed
            if alert.fingerprint in fired and alert.fingerprint in draft.news
        ]
        return cordon_request_for(snapshot.rule, group.job_id, begins)


def _leave(conn: Connection, group: AlertGroup, *, next_at_s: float) -> None:
    """Leave the group as it is until then."""
    notifications.release(
        conn,
        group,
        next_at_s=next_at_s,
        last_at_s=None,
        refreshed_at_s=group.refreshed_at_s,
        held_since_s=group.held_since_s,
    )


def _held_since_s(
    group: AlertGroup, snapshot: GroupSnapshot, now_s: float, *, is_behind: bool
) -> float | None:
    """Since when the group is held after this plan.

    Also once all is processed, while an alert that began meanwhile is about to be over: its
    beginning is not notified any more, so its end has to be notified as one that was missed.
    """
    if is_behind:
        return group.held_since_s or now_s
    is_about_to_end = any(
        alert.is_waning and alert.fingerprint not in snapshot.notified for alert in snapshot.alerts
    )
    return group.held_since_s if is_about_to_end else None


@dataclass(slots=True)
class WrittenMessages:
    """Messages written, by kind of draft, and the alerts whose changes they report."""

    num_by_kind: Counter[DraftKind] = field(default_factory=Counter)
    fingerprints: set[str] = field(default_factory=set)

    @property
    def is_notice(self) -> bool:
        """Whether a firing or resolved message was written."""
        return any(self.num_by_kind[kind] for kind in ("firing", "resolved"))


@dataclass(frozen=True, slots=True)
class Sending:
    """A group whose messages are written, in this transaction at this Unix time.

    All of its job is processed up to `as_of_s`.
    """

    conn: Connection
    context: NotifyContext
    group: AlertGroup
    now_s: float
    as_of_s: float | None = None

    def write(self, receivers: Sequence[Receiver], drafts: Sequence[Draft]) -> WrittenMessages:
        """Write the messages of these drafts to these receivers."""
        written = WrittenMessages()
        if not drafts:
            return written
        addressee = self._addressee()
        for draft in drafts:
            for receiver in receivers:
                if not format_takes(receiver.format, draft.kind):
                    continue
                if draft.kind == "refresh":
                    group = (self.group.job_id, self.group.rule)
                    notifications.drop_refreshes(self.conn, receiver.endpoint_id, *group)
                for notice in notices_for(draft, addressee, receiver, now_s=self.now_s):
                    result = write_message(self.conn, notice, receiver, self.group.job_id)
                    if result != "failed":
                        written.num_by_kind[draft.kind] += 1
                        written.fingerprints.update(notice.about)
        return written

    def _addressee(self) -> NoticeGroup:
        conn, group = self.conn, self.group
        name, _ = jobs.name_and_labels(conn, group.job_id)
        base_url = self.context.pages_url(conn)
        links: SignedPictureLinks | None = None
        if base_url is not None and self.context.has_pictures:
            try:
                links = SignedPictureLinks(base_url, service_state.find_or_make_key(conn, KEY_NAME))
            except SecretsLocked as error:
                log.warning("messages without pictures", reason=str(error))
        times_s = self.as_of_s, group.held_since_s
        return NoticeGroup(group.job_id, name, group.rule, base_url, links, *times_s)


def notify_new_receivers(sending: Sending, snapshot: GroupSnapshot, plan: NotificationPlan) -> int:
    """Notify receivers added after the group's first notification; returns how many messages."""
    if not plan.tellable:
        return 0
    conn, group = sending.conn, sending.group
    since_s = notifications.new_receivers(conn, group.job_id, group.rule, now_s=sending.now_s)
    num_messages = 0
    for receiver in snapshot.receivers:
        if receiver.endpoint_id in since_s:
            draft = plan.for_new_receiver(snapshot.notified, since_s[receiver.endpoint_id])
            written = sending.write([receiver], [] if draft is None else [draft])
            num_messages += written.num_by_kind.total()
    return num_messages


def newly_firing(plan: NotificationPlan, notified: Mapping[str, LastNotification]) -> set[str]:
    """Alerts that have begun to fire, without a notification or cordon request since."""
    known = {fingerprint for fingerprint, row in notified.items() if row.kind != "resolved"}
    news = chain.from_iterable(draft.news.items() for draft in plan.drafts)
    return {fingerprint for fingerprint, kind in news if kind == "firing"} - known


def save_notified(
    conn: Connection,
    group: AlertGroup,
    snapshot: GroupSnapshot,
    plan: NotificationPlan,
    written: WrittenMessages,
    asked: Collection[str],
) -> None:
    """Save the last notifications of the group's alerts.

    A firing without any message stays due, for receivers to come; a resolution without one does
    not. For the alerts `asked` about, the cordon hook was called, and is not called again.
    """
    known = {alert for alert, row in snapshot.notified.items() if not row.is_at_rest}
    after: dict[str, LastNotified] = {}
    for fingerprint, last in plan.notified.items():
        # A repeat without this alert counts for it, too: else it would be repeated each time.
        is_notified = fingerprint in written.fingerprints or (
            written.is_notice and fingerprint in known
        )
        if last.kind != "firing" or is_notified:
            after[fingerprint] = last
        elif fingerprint in asked:
            after[fingerprint] = replace(last, kind="lapsed")
    rows = notification_rows(snapshot.alerts, after, snapshot.notified)
    notifications.save_notifications(conn, group.job_id, group.rule, rows)
    notifications.forget_notifications(conn, plan.forgotten)
