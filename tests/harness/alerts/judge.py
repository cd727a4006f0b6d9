"""Compares received notifications with those that the store says are owed; pure functions.

Lost: never delivered. Renewed: the same content under two ids. Repeated: delivered again without
a process death. Spoken: delivered during a silence. Stale: the receiver's last status of an alert
is not the last one owed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.harness.alerts.listener import ReceivedNotification, Status

# A receiver may read a message shortly after its sender died, and a message claimed before a
# silence began is still delivered.
SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class OwedNotification:
    """One status of an alert that a receiver must be notified of."""

    receiver: str
    fingerprint: str
    status: Status
    job: str
    rule: str

    def __str__(self) -> str:
        return f"{self.receiver} of {self.job}: {self.rule} {self.status} ({self.fingerprint[:8]})"


@dataclass(frozen=True, slots=True)
class SilencedPeriod:
    """A silence of one job, by the monotonic clock."""

    job: str
    begins_s: float
    ends_s: float


def lost(owed: Iterable[OwedNotification], received: Sequence[ReceivedNotification]) -> list[str]:
    """Owed notifications that were never delivered."""
    delivered = {
        (each.receiver, fingerprint, status)
        for each in received
        for fingerprint, status in each.statuses.items()
    }
    return [f"lost: {each}" for each in owed if _key(each) not in delivered]


def stale(owed: Iterable[OwedNotification], received: Sequence[ReceivedNotification]) -> list[str]:
    """Receivers whose last status of an alert is not the last one owed."""
    last_owed = {(each.receiver, each.fingerprint): each for each in owed}
    last_statuses = {
        (each.receiver, fingerprint): status
        for each in received
        for fingerprint, status in each.statuses.items()
    }
    return [
        f"stale: {each}, but the last that it was told is {last_statuses[key]}"
        for key, each in last_owed.items()
        if key in last_statuses and last_statuses[key] != each.status
    ]


def renewed(received: Iterable[ReceivedNotification]) -> list[str]:
    """The same content under more than one delivery id."""
    ids: defaultdict[object, dict[str, ReceivedNotification]] = defaultdict(dict)
    for each in received:
        ids[each.topic].setdefault(each.delivery_id, each)
    return [
        f"renewed: {first.receiver} of {first.job}, {first.rule}, came as {sorted(same)}"
        for same in ids.values()
        if len(same) > 1 and (first := next(iter(same.values())))
    ]


def repeated(received: Iterable[ReceivedNotification], deaths_s: Sequence[float]) -> list[str]:
    """Messages delivered again although no process died in between."""
    return [
        f"repeated: {repeat.receiver} of {repeat.job}, {repeat.delivery_id}, and nobody had died"
        for times in _times(received).values()
        for repeat in _unexplained(times, sorted(deaths_s))
    ]


def num_repeated(received: Iterable[ReceivedNotification]) -> Counter[tuple[str, str]]:
    """Number of repeated deliveries by receiver and delivery id, where there are any."""
    times = {key: len(same) - 1 for key, same in _times(received).items()}
    return Counter({key: number for key, number in times.items() if number})


def spoken(
    received: Iterable[ReceivedNotification], silences: Iterable[SilencedPeriod]
) -> list[str]:
    """Notifications of a job delivered during one of its silences."""
    of_job: defaultdict[str, list[SilencedPeriod]] = defaultdict(list)
    for silence in silences:
        of_job[silence.job].append(silence)
    return [
        f"spoken: {each.receiver} of {each.job} in a silence"
        for each in received
        if any(
            silence.begins_s + SLACK_S < each.at_s < silence.ends_s for silence in of_job[each.job]
        )
    ]


def wrong(
    owed: Sequence[OwedNotification],
    received: Sequence[ReceivedNotification],
    *,
    deaths_s: Sequence[float],
    silences: Iterable[SilencedPeriod],
) -> list[str]:
    """All complaints."""
    return [
        *lost(owed, received),
        *stale(owed, received),
        *renewed(received),
        *repeated(received, deaths_s),
        *spoken(received, silences),
    ]


def _key(owed: OwedNotification) -> tuple[str, str, Status]:
    return owed.receiver, owed.fingerprint, owed.status


def _times(
    received: Iterable[ReceivedNotification],
) -> Mapping[tuple[str, str], list[ReceivedNotification]]:
    found: defaultdict[tuple[str, str], list[ReceivedNotification]] = defaultdict(list)
    for each in received:
        found[each.receiver, each.delivery_id].append(each)
    return found


def _unexplained(
    times: Sequence[ReceivedNotification], deaths_s: Sequence[float]
) -> Iterator[ReceivedNotification]:
    """Repeated deliveries without a death of their own: each death explains one."""
    left = list(deaths_s)
    for before, repeat in pairwise(times):
        between = [each for each in left if before.at_s - SLACK_S <= each <= repeat.at_s]
        if between:
            left.remove(between[0])
        else:
            yield repeat
