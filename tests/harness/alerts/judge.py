"""Compares what receivers recorded with what the store says they were owed; pure functions.

Lost: never delivered. Renewed: the same news under two ids. Repeated: delivered again though no
process died. Spoken: delivered during a silence. Stale: the receiver's last state is not the last
that it was owed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.harness.alerts.listener import ReceivedNotification, Status

# A process that dies has sent shortly before what a receiver reads shortly after; and what was
# claimed before a silence began is on its way.
SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class OwedNotification:
    """That an endpoint is told this of an alert, and where it is from."""

    endpoint: str
    fingerprint: str
    status: Status
    job: str
    rule: str

    def __str__(self) -> str:
        return f"{self.endpoint} of {self.job}: {self.rule} {self.status} ({self.fingerprint[:8]})"


@dataclass(frozen=True, slots=True)
class SilencedPeriod:
    """A silence of one job, by the monotonic clock."""

    job: str
    begins_s: float
    ends_s: float


def lost(owed: Iterable[OwedNotification], hearings: Sequence[ReceivedNotification]) -> list[str]:
    """What an endpoint was never told."""
    told = {
        (each.endpoint, fingerprint, status)
        for each in hearings
        for fingerprint, status in each.told.items()
    }
    return [f"lost: {each}" for each in owed if _key(each) not in told]


def stale(owed: Iterable[OwedNotification], hearings: Sequence[ReceivedNotification]) -> list[str]:
    """Endpoints whose last word on an alert is not the last that they were owed."""
    last_owed = {(each.endpoint, each.fingerprint): each for each in owed}
    last_told = {
        (each.endpoint, fingerprint): status
        for each in hearings
        for fingerprint, status in each.told.items()
    }
    return [
        f"stale: {each}, but the last that it was told is {last_told[key]}"
        for key, each in last_owed.items()
        if key in last_told and last_told[key] != each.status
    ]


def renewed(hearings: Iterable[ReceivedNotification]) -> list[str]:
    """The same news under more than one id."""
    ids: defaultdict[object, dict[str, ReceivedNotification]] = defaultdict(dict)
    for each in hearings:
        ids[each.topic].setdefault(each.delivery_id, each)
    return [
        f"renewed: {first.endpoint} of {first.job}, {first.rule}, came as {sorted(same)}"
        for same in ids.values()
        if len(same) > 1 and (first := next(iter(same.values())))
    ]


def repeated(hearings: Iterable[ReceivedNotification], deaths_s: Sequence[float]) -> list[str]:
    """Messages that came again though nobody died between one time and the next."""
    return [
        f"repeated: {again.endpoint} of {again.job}, {again.delivery_id}, and nobody had died"
        for times in _times(hearings).values()
        for again in _unexplained(times, sorted(deaths_s))
    ]


def num_repeated(hearings: Iterable[ReceivedNotification]) -> Counter[tuple[str, str]]:
    """How often each message came again, by endpoint and id, of those that did."""
    times = {key: len(same) - 1 for key, same in _times(hearings).items()}
    return Counter({key: number for key, number in times.items() if number})


def spoken(hearings: Iterable[ReceivedNotification], quiets: Iterable[SilencedPeriod]) -> list[str]:
    """What was told of a job in a silence of it."""
    of_job: defaultdict[str, list[SilencedPeriod]] = defaultdict(list)
    for quiet in quiets:
        of_job[quiet.job].append(quiet)
    return [
        f"spoken: {each.endpoint} of {each.job} in a silence"
        for each in hearings
        if any(quiet.begins_s + SLACK_S < each.at_s < quiet.ends_s for quiet in of_job[each.job])
    ]


def wrong(
    owed: Sequence[OwedNotification],
    hearings: Sequence[ReceivedNotification],
    *,
    deaths_s: Sequence[float],
    quiets: Iterable[SilencedPeriod],
) -> list[str]:
    """Every promise that was broken."""
    return [
        *lost(owed, hearings),
        *stale(owed, hearings),
        *renewed(hearings),
        *repeated(hearings, deaths_s),
        *spoken(hearings, quiets),
    ]


def _key(owed: OwedNotification) -> tuple[str, str, Status]:
    return owed.endpoint, owed.fingerprint, owed.status


def _times(
    hearings: Iterable[ReceivedNotification],
) -> Mapping[tuple[str, str], list[ReceivedNotification]]:
    found: defaultdict[tuple[str, str], list[ReceivedNotification]] = defaultdict(list)
    for each in hearings:
        found[each.endpoint, each.delivery_id].append(each)
    return found


def _unexplained(
    times: Sequence[ReceivedNotification], deaths_s: Sequence[float]
) -> Iterator[ReceivedNotification]:
    """Each death explains one repetition of a message, and no more."""
    left = list(deaths_s)
    for before, again in pairwise(times):
        mine = [each for each in left if before.at_s - SLACK_S <= each <= again.at_s]
        if mine:
            left.remove(mine[0])
        else:
            yield again
