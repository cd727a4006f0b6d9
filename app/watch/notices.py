"""Notices about the service itself: that a part of it does not work, and that it works again."""

from dataclasses import dataclass
from typing import NamedTuple

from app import formatting
from app.alerts.formats.registry import format_takes
from app.alerts.notice import Notice, NoticeKind
from app.alerts.receiver import Receiver
from app.store.alerting import receivers
from app.store.alerting.service_watches import WatchName
from app.store.as_of import AsOf
from app.store.database import Connection

# Messages that the API process sends by itself, since consumers may be dead.
SERVICE_KINDS: frozenset[NoticeKind] = frozenset({"service-down", "service-up"})
_PAGE = "/status"


class Words(NamedTuple):
    """Texts of a notice: its sentence, and a second one with details."""

    sentence: str
    sub: str


@dataclass(frozen=True, slots=True)
class ServiceNews:
    """A part of the service that is down, or up again; `began_s` is that of its first notice.

    `repeat` numbers the repetitions of one outage, for receivers that forget it; 0 is the first.
    """

    part: WatchName
    kind: NoticeKind
    began_s: float
    at_s: float
    words: Words
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
            sentence=self.words.sentence,
            sub=self.words.sub,
            page_url=None if base_url is None else base_url.rstrip("/") + _PAGE,
            base_url=base_url,
            group_labels={"service": self.part},
            began_s=self.began_s,
        )


def consumers_down(down_s: float) -> Words:
    """No consumer has worked for `down_s`."""
    return Words(
        f"No consumer has worked for {formatting.duration(down_s)}: no job is analysed, "
        "and no alert is sent.",
        "Batches are still accepted and wait in the queue. Start a consumer, or read its log; "
        "the status page says what answers and what does not.",
    )


def consumers_up(told_for_s: float) -> Words:
    """A consumer works again, so long after the first notice of it."""
    return Words(
        "Consumers work again: jobs are analysed and alerts are sent.",
        f"The outage was noticed {formatting.duration(told_for_s)} ago. "
        "What waited in the queue is being worked off.",
    )


def backlog_behind(progress: AsOf, now_s: float) -> Words:
    """Consumers have been behind for long."""
    at_s = now_s if progress.at_s is None else progress.at_s
    return Words(
        f"Paceline is {formatting.duration(progress.behind_s)} behind what workers send: states "
        f"are as of {formatting.utc_time(at_s, now_s)}, and no alert fires of what came later.",
        "Nothing is lost: batches wait in the queue, and what was missed is told once they are "
        "processed. Add a consumer or CPUs, or send less; the status page has the parts.",
    )


def backlog_gone(told_for_s: float) -> Words:
    """Consumers have caught up, so long after the first notice of it."""
    return Words(
        "Paceline has caught up: states are those of now.",
        f"People were told {formatting.duration(told_for_s)} ago that it was behind. "
        "What was missed meanwhile is told now.",
    )


def canary_missing(down_s: float, detail: str | None) -> Words:
    """No round of the canary has succeeded for `down_s`."""
    return Words(
        f"The canary has not been found for {formatting.duration(down_s)}: a straggler may be "
        "missed, though consumers work.",
        f"Last round: {detail or 'it did not end'}. The status page has the parts.",
    )


def canary_back(told_for_s: float) -> Words:
    """A round of the canary has succeeded again, so long after the first notice of it."""
    return Words(
        "The canary is found again: stragglers are recognised.",
        f"The outage was noticed {formatting.duration(told_for_s)} ago.",
    )


ALL_WORKS = Words(
    "Paceline works: queue, consumers and database.",
    "When these heartbeats stay away, it does not.",
)


def receivers_of(conn: Connection, kind: NoticeKind) -> list[Receiver]:
    """Receivers of such a notice: those of alerts, and of an outage also checks of healthchecks."""
    return [
        receiver
        for receiver in receivers.all_enabled(conn)
        if format_takes(receiver.format, kind)
        and (receiver.heartbeat_every_s is None or receiver.format == "healthchecks")
    ]
