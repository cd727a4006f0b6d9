"""What people are told of the service itself: that it does not work, that it does again."""

from collections.abc import Sequence
from dataclasses import dataclass

from app import formatting
from app.alerts.formats.registry import format_takes, render_notice
from app.alerts.notice import Notice, NoticeKind
from app.alerts.receiver import Receiver
from app.store.alerting import outbox, receivers
from app.store.alerting.service_watches import WatchName
from app.store.as_of import AsOf
from app.store.database import Connection
from app.trace.job import DEFAULT_PROJECT

# Messages that the API process sends by itself, since consumers may be dead.
SERVICE_KINDS: frozenset[NoticeKind] = frozenset({"service-down", "service-up"})
_PAGE = "/status"


@dataclass(frozen=True, slots=True)
class ServiceNews:
    """A part of the service that is down, or up again; `began_s` is when receivers were told first.

    `repeat` numbers the repetitions of one outage, for receivers that forget it; 0 is the first.
    """

    part: WatchName
    kind: NoticeKind
    began_s: float
    at_s: float
    sentence: str
    sub: str
    repeat: int = 0

    @property
    def outage_id(self) -> str:
        """Id of the first notice of this outage; ids of its repetitions begin with it."""
        return f"service-down-{self.part}-{self.began_s:.3f}"

    def notice(self, base_url: str | None, project: str) -> Notice:
        """The notice; the same outage has one id, so that a receiver gets each news once."""
        again = f"-{self.repeat}" if self.repeat else ""
        return Notice(
            notice_id=f"{self.kind}-{self.part}-{self.began_s:.3f}{again}",
            kind=self.kind,
            group_key=f'{{}}:{{service="{self.part}"}}',
            project=project,
            job=None,
            job_name=None,
            rule=None,
            severity="critical",
            at_s=self.at_s,
            sentence=self.sentence,
            sub=self.sub,
            page_url=None if base_url is None else base_url.rstrip("/") + _PAGE,
            base_url=base_url,
            group_labels={"service": self.part},
            began_s=self.began_s,
        )


def consumers_down(began_s: float, now_s: float, down_s: float, *, repeat: int = 0) -> ServiceNews:
    """No consumer has worked for `down_s`."""
    return ServiceNews(
        "consumers",
        "service-down",
        began_s,
        now_s,
        f"No consumer has worked for {formatting.duration(down_s)}: no job is analysed, "
        "and no alert is sent.",
        "Batches are still accepted and wait in the queue. Start a consumer, or read its log; "
        "the status page says what answers and what does not.",
        repeat,
    )


def consumers_up(began_s: float, now_s: float) -> ServiceNews:
    """A consumer works again."""
    return ServiceNews(
        "consumers",
        "service-up",
        began_s,
        now_s,
        "Consumers work again: jobs are analysed and alerts are sent.",
        f"The outage was noticed {formatting.duration(now_s - began_s)} ago. "
        "What waited in the queue is being worked off.",
    )


def backlog_behind(began_s: float, now_s: float, progress: AsOf, *, repeat: int = 0) -> ServiceNews:
    """Consumers have been behind for long."""
    at_s = now_s if progress.at_s is None else progress.at_s
    return ServiceNews(
        "backlog",
        "service-down",
        began_s,
        now_s,
        f"Paceline is {formatting.duration(progress.behind_s)} behind what workers send: states "
        f"are as of {formatting.utc_time(at_s, now_s)}, and no alert fires of what came later.",
        "Nothing is lost: batches wait in the queue, and what was missed is told once they are "
        "processed. Add a consumer or CPUs, or send less; the status page has the parts.",
        repeat,
    )


def backlog_gone(began_s: float, now_s: float) -> ServiceNews:
    """Consumers have caught up."""
    return ServiceNews(
        "backlog",
        "service-up",
        began_s,
        now_s,
        "Paceline has caught up: states are those of now.",
        f"People were told {formatting.duration(now_s - began_s)} ago that it was behind. "
        "What was missed meanwhile is told now.",
    )


def canary_missing(
    began_s: float, now_s: float, down_s: float, detail: str | None, *, repeat: int = 0
) -> ServiceNews:
    """The canary was not found for `down_s`."""
    return ServiceNews(
        "canary",
        "service-down",
        began_s,
        now_s,
        f"The canary has not been found for {formatting.duration(down_s)}: a straggler may be "
        "missed, though consumers work.",
        f"Last round: {detail or 'it did not end'}. The status page has the parts.",
        repeat,
    )


def canary_found(began_s: float, now_s: float) -> ServiceNews:
    """The canary is found again."""
    return ServiceNews(
        "canary",
        "service-up",
        began_s,
        now_s,
        "The canary is found again: stragglers are recognised.",
        f"The outage was noticed {formatting.duration(now_s - began_s)} ago.",
    )


def heartbeat(at_s: float) -> ServiceNews:
    """All parts work."""
    return ServiceNews(
        "consumers",
        "heartbeat",
        at_s,
        at_s,
        "Paceline works: queue, consumers and database.",
        "When these heartbeats stay away, it does not.",
    )


def put_in_outbox(
    conn: Connection, news: ServiceNews, to: Sequence[Receiver], *, base_url: str | None
) -> int:
    """Add the news to the outbox for these receivers; returns the number of messages."""
    number = 0
    for receiver in to:
        notice = news.notice(base_url, receiver.project or DEFAULT_PROJECT)
        added = outbox.add(
            conn,
            endpoint_id=receiver.endpoint_id,
            notice_id=notice.notice_id,
            job_id=None,
            rule=None,
            kind=news.kind,
            message=render_notice(notice, receiver),
            fingerprints=[],
            now_s=news.at_s,
            project=notice.project,
        )
        number += added is not None
    return number


def receivers_of(conn: Connection, kind: NoticeKind) -> list[Receiver]:
    """Who is told of the service: all receivers, and of an outage also checks of healthchecks."""
    return [
        each
        for each in receivers.all_enabled(conn)
        if format_takes(each.format, kind)
        and (each.heartbeat_every_s is None or each.format == "healthchecks")
    ]
