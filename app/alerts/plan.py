"""What planning looks at and what it says: alerts as they stand, what was told, what is to be."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.alerts.notice import Told

# "lapsed" is what nobody takes to fire, although it does: it was resolved with its group, what was
# to tell of it was held back, or a tool was asked to act and nobody told. Of what has "ended" only
# those know who know each alert, since it is silenced for people.
LastKind = Literal["firing", "resolved", "acknowledged", "lapsed", "ended"]
News = Literal["firing", "repeat", "resolved", "acknowledged"]
DraftKind = Literal["firing", "resolved", "acknowledged", "refresh"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from a group's first alert to its notice, between its notices, and until a repeat.

    Within `damping_s` of being told, an alert is told nothing new: one that flaps rings once.
    Receivers that take for over what they do not hear of are told each `refresh_s` what fires;
    None where there are none.
    """

    wait_s: float = 1.0
    interval_s: float = 60.0
    repeat_s: float = 4 * 3600.0
    damping_s: float = 300.0
    refresh_s: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """An alert as it stands now: `told` is how a notice would list it.

    One that `is_waning` fires still, but its last windows were below the threshold.
    """

    told: Told
    is_acked: bool = False
    is_no_data: bool = False
    is_waning: bool = False

    @property
    def fingerprint(self) -> str:
        """Which alert it is."""
        return self.told.fingerprint

    @property
    def is_firing(self) -> bool:
        """Whether it fires, or has come to rest since it was told."""
        return self.told.status == "firing"

    @property
    def is_quiet(self) -> bool:
        """Whether it is not repeated: somebody looks after it, or nothing is known of it now."""
        return self.is_acked or self.is_no_data


@dataclass(frozen=True, slots=True)
class Last:
    """What receivers were told of an alert last, and when (Unix seconds).

    That somebody acknowledged it moves no moment: it is no news of the alert.
    """

    kind: LastKind
    at_s: float


@dataclass(frozen=True, slots=True)
class Draft:
    """What one notice would say, before it is known to whom: `news` by fingerprint."""

    kind: DraftKind
    listed: Sequence[Told]
    news: Mapping[str, News]

    @property
    def is_repeat(self) -> bool:
        """Whether everything in it was told before."""
        return set(self.news.values()) == {"repeat"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Drafts to send now, what is told by then, and when to look again; None: only if woken.

    `told` has only the alerts of which more was told; those in `forgotten` are as if never told.
    `refreshed_at_s` is since when nothing was refreshed. `known` are the alerts that people take to
    fire and that nothing keeps back, and `loud` those of them that nobody looks after.
    """

    drafts: Sequence[Draft] = ()
    told: Mapping[str, Last] = field(default_factory=dict)
    forgotten: Sequence[str] = ()
    next_at_s: float | None = None
    refreshed_at_s: float | None = None
    known: Sequence[Told] = ()
    loud: Collection[str] = ()

    @property
    def is_notice(self) -> bool:
        """Whether people are told that something fires or is over."""
        return any(draft.kind in ("firing", "resolved") for draft in self.drafts)

    def for_newcomer(self, told: Mapping[str, Last], since_s: float) -> Draft | None:
        """What fires, to who wants it since `since_s` only: it was told to others before."""
        missed = [each for each in self.loud if told[each].at_s < since_s]
        news: dict[str, News] = dict.fromkeys(missed, "firing")
        return Draft("firing", self.known, news) if news else None
