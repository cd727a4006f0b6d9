"""Drafts of notices as messages in the outbox: one for each endpoint that wants to know."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import structlog

from app.alerts.addressee import Addressee
from app.alerts.addressing import addressed
from app.alerts.endpoint import Endpoint
from app.alerts.formats.registry import is_told, render
from app.alerts.message import Message
from app.alerts.notice import Notice
from app.alerts.picture_link import KEY_NAME, PictureLinks
from app.alerts.plan import Draft, DraftKind
from app.consumer.desk import Desk
from app.store import jobs, outbox, refreshes, service_keys
from app.store.alert_groups import Group
from app.store.engine import Connection

log = structlog.get_logger()


@dataclass(slots=True)
class Written:
    """How many messages there are now of each kind of draft, and of which alerts they have news."""

    kinds: Counter[DraftKind] = field(default_factory=Counter)
    about: set[str] = field(default_factory=set)

    @property
    def is_notice(self) -> bool:
        """Whether somebody is told that something fires or is over."""
        return any(self.kinds[kind] for kind in ("firing", "resolved"))

    def add(self, kind: DraftKind, about: Collection[str]) -> None:
        """One more."""
        self.kinds[kind] += 1
        self.about.update(about)


def write(
    conn: Connection,
    desk: Desk,
    group: Group,
    receivers: Sequence[Endpoint],
    drafts: Sequence[Draft],
    now_s: float,
) -> Written:
    """Write what these receivers are to be told."""
    written = Written()
    if not drafts:
        return written
    name = jobs.get(conn, group.job_id).name
    links = _links(conn, desk)
    addressee = Addressee(group.job_id, name, group.rule, desk.base_url, links)
    for draft in drafts:
        for endpoint in receivers:
            if is_told(endpoint.format, draft.kind):
                for notice in _written(conn, addressee, draft, endpoint, now_s):
                    written.add(draft.kind, notice.about)
    return written


def _links(conn: Connection, desk: Desk) -> PictureLinks | None:
    if desk.base_url is None or not desk.has_pictures:
        return None
    return PictureLinks(desk.base_url, service_keys.find_or_make(conn, KEY_NAME))


def _written(
    conn: Connection, addressee: Addressee, draft: Draft, endpoint: Endpoint, now_s: float
) -> list[Notice]:
    if draft.kind == "refresh":
        refreshes.forget(conn, endpoint.endpoint_id, addressee.job_id, addressee.rule)
    notices = addressed(draft, addressee, endpoint, now_s=now_s)
    return [notice for notice in notices if _add(conn, addressee, notice, endpoint)]


def _add(conn: Connection, addressee: Addressee, notice: Notice, endpoint: Endpoint) -> bool:
    message = _message(notice, endpoint)
    if message is None:
        return False
    outbox.add(
        conn,
        endpoint_id=endpoint.endpoint_id,
        notice_id=notice.notice_id,
        job_id=addressee.job_id,
        rule=addressee.rule,
        kind=notice.kind,
        message=message,
        fingerprints=notice.about,
        listed=[told.fingerprint for told in notice.alerts],
        now_s=notice.at_s,
    )
    return True


def _message(notice: Notice, endpoint: Endpoint) -> Message | None:
    try:
        return render(notice, endpoint)
    except Exception:
        # What one format cannot say, the others can.
        log.exception("message not written", endpoint=endpoint.endpoint_id)
        return None
