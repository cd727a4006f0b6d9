"""Which notifications are due for the alerts of one rule on one job, after those sent before.

A notice lists all alerts of the group that receivers know to fire, since many receivers keep one
incident for all; some of them are news, and without news there is no notice. Receivers that resolve
an alert unless it is sent again (Alertmanager) get refreshes: these are no news, and go on while
the alert is acknowledged, silenced, inhibited or without data. Nothing is sent or saved here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.alerts.labels import Silence
from app.alerts.notice import NoticeAlert

# "lapsed": it fires, but receivers take it for resolved: it was resolved with its group, its
# message was dropped, or only a cordon hook was called. "ended": it is over, and only receivers
# that keep a state per alert were notified, since it is silenced for people.
LastNotifiedKind = Literal["firing", "resolved", "acknowledged", "lapsed", "ended"]
NewsKind = Literal["firing", "repeat", "resolved", "acknowledged"]
DraftKind = Literal["firing", "resolved", "acknowledged", "refresh"]


@dataclass(frozen=True, slots=True)
class NotificationTiming:
    """Seconds between a group's notices (`interval_s`), and until a firing alert is repeated.

    An alert that was notified as resolved is not notified again within `damping_s`; one that fires
    soon after that flaps, and its next resolution waits for `damping_s`, too. Receivers that
    resolve alerts by themselves get all firing alerts every `refresh_s`; None without such.
    """

    interval_s: float = 60.0
    repeat_s: float = 4 * 3600.0
    damping_s: float = 300.0
    refresh_s: float | None = None


@dataclass(frozen=True, slots=True)
class CurrentAlert:
    """The present state of an alert; `entry` is its part of a notice.

    One that `is_waning` still fires, but its last windows were below the threshold; one that
    `was_missed` began and ended while messages waited, so that no receiver knows of it.
    """

    entry: NoticeAlert
    is_acked: bool = False
    is_no_data: bool = False
    is_waning: bool = False
    was_missed: bool = False

    @property
    def fingerprint(self) -> str:
        """Identity of the alert."""
        return self.entry.fingerprint

    @property
    def is_firing(self) -> bool:
        """Whether it fires now."""
        return self.entry.status == "firing"

    @property
    def is_quiet(self) -> bool:
        """Whether it is not repeated: it is acknowledged, or without data."""
        return self.is_acked or self.is_no_data


@dataclass(frozen=True, slots=True)
class LastNotified:
    """The last notification of an alert, and when it was sent (Unix seconds).

    An acknowledgement does not change `at_s`. An alert `flaps` if it was notified as firing again
    soon after its resolution.
    """

    kind: LastNotifiedKind
    at_s: float
    flaps: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of one notice before receivers are chosen; `news` by fingerprint."""

    kind: DraftKind
    listed: Sequence[NoticeAlert]
    news: Mapping[str, NewsKind]

    @property
    def is_repeat(self) -> bool:
        """Whether all of it was notified before."""
        return set(self.news.values()) == {"repeat"}


@dataclass(frozen=True, slots=True)
class NotificationPlan:
    """Drafts to send now, the last notifications after them, and when to plan again.

    `notified` has only alerts whose last notification changes; those of `forgotten` are removed.
    `next_at_s` None: plan again only when woken. `refreshed_at_s` is when a refresh was sent last.
    `firing_known` are the alerts that receivers know to fire and that are not muted; `tellable`
    are those of them that are neither acknowledged nor without data, nor about to be over.
    """

    drafts: Sequence[Draft] = ()
    notified: Mapping[str, LastNotified] = field(default_factory=dict)
    forgotten: Sequence[str] = ()
    next_at_s: float | None = None
    refreshed_at_s: float | None = None
    firing_known: Sequence[NoticeAlert] = ()
    tellable: Collection[str] = ()

    @property
    def is_notice(self) -> bool:
        """Whether a notice says that something fires or is resolved."""
        return any(draft.kind in ("firing", "resolved") for draft in self.drafts)

    def for_new_receiver(
        self, notified: Mapping[str, LastNotified], since_s: float
    ) -> Draft | None:
        """The firing alerts, for a receiver that was added at `since_s`, after they were sent."""
        missed = [mark for mark in self.tellable if notified[mark].at_s < since_s]
        news: dict[str, NewsKind] = dict.fromkeys(missed, "firing")
        return Draft("firing", self.firing_known, news) if news else None


_KNOWN_FIRING_KINDS = ("firing", "acknowledged", "ended")


@dataclass(frozen=True, slots=True)
class AlertNews:
    """One alert now: its news, if any; else when it may have some (None: only if woken).

    A muted alert is in no notice.
    """

    alert: CurrentAlert
    last: LastNotified | None
    news: NewsKind | None = None
    due_s: float | None = None
    is_muted: bool = False

    @property
    def last_kind(self) -> LastNotifiedKind | None:
        """Kind of the last notification; None before the first."""
        return None if self.last is None else self.last.kind

    @property
    def is_known(self) -> bool:
        """Whether receivers believe that it fires."""
        return self.last_kind in _KNOWN_FIRING_KINDS

    @property
    def is_refreshed(self) -> bool:
        """Whether it fires, and receivers that keep a state per alert were notified."""
        return self.last_kind not in (None, "resolved") and self.alert.is_firing

    @property
    def is_lapsed_and_over(self) -> bool:
        """Whether it is over, but receivers that keep a state per alert take it to fire."""
        return self.last_kind == "lapsed" and not self.alert.is_firing

    @property
    def is_over_silenced(self) -> bool:
        """Whether it ended while it was silenced, so that no receiver knows."""
        is_believed = self.last_kind in ("firing", "acknowledged")
        return is_believed and self.is_muted and not self.alert.is_firing

    @property
    def is_listed(self) -> bool:
        """Whether a notice lists it beside its news."""
        return self.is_known and self.alert.is_firing and not self.is_muted

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be repeated."""
        return self.is_listed and not self.alert.is_quiet


@dataclass(frozen=True, slots=True)
class NewsRules:
    """Decides the news of one alert: silences, inhibition and timing."""

    silent_until: Mapping[str, float]
    inhibited: Collection[str]
    now_s: float
    timing: NotificationTiming

    def view(self, alert: CurrentAlert, last: LastNotified | None) -> AlertNews:
        """The alert with its news, given its last notification."""
        view = AlertNews(alert, last)
        if not alert.is_firing and not view.is_known and not alert.was_missed:
            return view
        if (end_s := self.silent_until.get(alert.fingerprint)) is not None:
            return replace(view, due_s=end_s, is_muted=True)
        if not alert.is_firing:
            flaps = last is not None and last.flaps
            return self._due(view, "resolved", self.timing.damping_s if flaps else 0.0)
        if alert.fingerprint in self.inhibited:
            return replace(view, due_s=self.now_s + self.timing.interval_s, is_muted=True)
        return self._firing(view)

    def _firing(self, view: AlertNews) -> AlertNews:
        if view.alert.is_acked:
            is_new = view.last_kind in ("firing", "ended")
            return replace(view, news="acknowledged" if is_new else None)
        if view.alert.is_no_data:
            return view
        if view.last_kind == "acknowledged":
            # The acknowledgement was withdrawn: news at once, not a repeat.
            return self._due(view, "firing", 0.0)
        if view.alert.is_waning and not view.is_known:
            # It may soon be over; look again later.
            return replace(view, due_s=self.now_s + self.timing.interval_s)
        if view.is_known:
            return self._due(view, "repeat", self.timing.repeat_s)
        return self._due(view, "firing", self.timing.damping_s)

    def _due(self, view: AlertNews, news: NewsKind, after_s: float) -> AlertNews:
        # A clock that was set back must not delay a notification for hours.
        due_s = self.now_s if view.last is None else min(view.last.at_s, self.now_s) + after_s
        return replace(view, news=news if due_s <= self.now_s else None, due_s=due_s)


def silenced_until(
    labels: Mapping[str, Mapping[str, str]], silences: Iterable[Silence], now_s: float
) -> dict[str, float]:
    """Until when (Unix seconds) each alert is silenced that is; `labels` are by fingerprint."""
    until: dict[str, float] = {}
    # One silence after the other: patterns are compiled, and only the last few are remembered.
    for silence in silences:
        for fingerprint in labels if silence.is_active(now_s) else ():
            if silence.mutes(labels[fingerprint], now_s):
                until[fingerprint] = max(silence.ends_s, until.get(fingerprint, 0.0))
    return until


def refresh_drafts(
    views: Sequence[AlertNews],
    refreshed_at_s: float | None,
    now_s: float,
    timing: NotificationTiming,
    *,
    is_held: bool = False,
) -> Iterator[Draft]:
    """Refreshes of all firing alerts, if due; and at once of those that ended unknown to receivers.

    Ends of silenced alerts are sent, too: a silence is for people. While `is_held` no end is sent.
    """
    forgets = timing.refresh_s is not None
    over = [] if is_held else [
        view.alert.entry
        for view in views
        if view.is_lapsed_and_over or (forgets and view.is_over_silenced)
    ]  # fmt: skip
    due_s = refresh_due_s(views, refreshed_at_s, timing)
    is_due = due_s is not None and due_s <= now_s
    alive = [view.alert.entry for view in views if view.is_refreshed] if is_due else []
    news: dict[str, NewsKind] = dict.fromkeys((alert.fingerprint for alert in over), "resolved")
    if over or alive:
        yield Draft("refresh", [*over, *alive], news)


def refresh_due_s(
    views: Sequence[AlertNews], refreshed_at_s: float | None, timing: NotificationTiming
) -> float | None:
    """When (Unix seconds) the next refresh is due; None: never."""
    if timing.refresh_s is None or not any(view.is_refreshed for view in views):
        return None
    return 0.0 if refreshed_at_s is None else refreshed_at_s + timing.refresh_s


# Times `damping_s`, from a notified resolution to the next notification: it is at least 1.
_FLAPS_WITHIN = 2.0
# Longer than a delivery may take: the sender reads the labels of a message's alerts.
_FORGET_AFTER_S = 86_400.0


def plan_notifications(
    alerts: Sequence[CurrentAlert],
    last_notified: Mapping[str, LastNotified],
    *,
    silences: Sequence[Silence],
    inhibited: Collection[str],
    last_at_s: float | None,
    now_s: float,
    timing: NotificationTiming,
    refreshed_at_s: float | None = None,
    is_held: bool = False,
) -> NotificationPlan:
    """The notifications of these alerts that are due now.

    `alerts` fire, or are at rest while receivers believe that they fire. `last_notified` is by
    fingerprint, as are `inhibited` ones. The group's last notice was at `last_at_s`, its last
    refresh at `refreshed_at_s` (None: never). With `is_held` the present state of the alerts is not
    known: nothing is notified as new, resolved or repeated, and receivers that resolve alerts by
    themselves are only refreshed.
    """
    labels = {alert.fingerprint: alert.entry.labels for alert in alerts}
    rules = NewsRules(silenced_until(labels, silences, now_s), inhibited, now_s, timing)
    views = [rules.view(alert, last_notified.get(alert.fingerprint)) for alert in alerts]
    # When the group's next notice may be.
    free_at_s = now_s if is_held or last_at_s is None else min(last_at_s, now_s) + timing.interval_s
    notices = list(_notice(views, now_s, timing)) if free_at_s <= now_s and not is_held else []
    if notices:
        free_at_s = now_s + timing.interval_s
    if refreshed_at_s is not None:
        refreshed_at_s = min(refreshed_at_s, now_s)  # by a clock that was set back
    refreshes = list(refresh_drafts(views, refreshed_at_s, now_s, timing, is_held=is_held))
    if refreshes or not any(view.is_refreshed for view in views):
        refreshed_at_s = now_s
    drafts = [*_acknowledgement(views), *notices, *refreshes]
    after = _notified_after(drafts, views, last_notified, now_s, timing.damping_s)
    later = [rules.view(view.alert, after.get(view.alert.fingerprint, view.last)) for view in views]
    due_s = (_earliest_due_s(later, free_at_s), refresh_due_s(later, refreshed_at_s, timing))
    return NotificationPlan(
        drafts,
        after,
        _forgettable(alerts, {**last_notified, **after}, now_s),
        min((at_s for at_s in due_s if at_s is not None), default=None),
        refreshed_at_s,
        firing_known=[view.alert.entry for view in views if view.is_listed],
        tellable=[
            view.alert.fingerprint
            for view in views
            if view.is_repeatable and not view.alert.is_waning
        ],
    )


def _acknowledgement(views: Iterable[AlertNews]) -> Iterable[Draft]:
    """A draft once every alert that receivers know to fire is acknowledged.

    It does not wait for the group's next turn.
    """
    listed = [view for view in views if view.is_listed]
    news: dict[str, NewsKind] = {
        view.alert.fingerprint: "acknowledged" for view in listed if view.news == "acknowledged"
    }
    if news and all(view.alert.is_acked for view in listed):
        yield Draft("acknowledged", [view.alert.entry for view in listed], news)


def _notice(
    views: Sequence[AlertNews], now_s: float, timing: NotificationTiming
) -> Iterable[Draft]:
    news: dict[str, NewsKind] = {
        view.alert.fingerprint: view.news
        for view in views
        if view.news is not None and view.news != "acknowledged"
    }
    if not news:
        return
    if set(news.values()) == {"repeat"}:
        # Repeat all at once, not each alert at its own time.
        for view in views:
            if view.is_repeatable and view.last and view.last.at_s + timing.damping_s <= now_s:
                news[view.alert.fingerprint] = "repeat"
    listed = [view for view in views if view.is_listed or view.alert.fingerprint in news]
    is_firing = any(view.alert.is_firing for view in listed)
    yield Draft("firing" if is_firing else "resolved", [view.alert.entry for view in listed], news)


def _notified_after(
    drafts: Iterable[Draft],
    views: Iterable[AlertNews],
    last_notified: Mapping[str, LastNotified],
    now_s: float,
    damping_s: float,
) -> dict[str, LastNotified]:
    after: dict[str, LastNotified] = {}
    for draft in drafts:
        if draft.kind == "refresh":
            after |= _notified_by_refresh(draft, last_notified)
            continue
        for fingerprint, news in draft.news.items():
            last = last_notified.get(fingerprint)
            if news == "acknowledged" and last is not None:
                after[fingerprint] = replace(last, kind="acknowledged")
            elif news == "resolved" or last is None:
                kind: LastNotifiedKind = "resolved" if news == "resolved" else "firing"
                after[fingerprint] = LastNotified(kind, now_s)
            else:
                was_over = last.kind == "resolved" and now_s - last.at_s < _FLAPS_WITHIN * damping_s
                after[fingerprint] = LastNotified("firing", now_s, last.flaps or was_over)
        if draft.kind == "resolved":
            # Receivers take the whole group for resolved. A muted alert that still fires is news
            # once it is no longer muted.
            after |= {
                view.alert.fingerprint: LastNotified("lapsed", now_s)
                for view in views
                if view.is_muted and view.is_known and view.alert.is_firing
            }
    return after


def _notified_by_refresh(
    draft: Draft, last_notified: Mapping[str, LastNotified]
) -> dict[str, LastNotified]:
    """A refresh changes only what receivers with a state per alert know."""
    after: dict[str, LastNotified] = {}
    for alert in draft.listed:
        last = last_notified.get(alert.fingerprint)
        if last is None:
            continue
        if alert.fingerprint in draft.news:
            kind: LastNotifiedKind = "resolved" if last.kind == "lapsed" else "ended"
            after[alert.fingerprint] = LastNotified(kind, last.at_s)
        elif last.kind == "ended":
            after[alert.fingerprint] = LastNotified("firing", last.at_s)
    return after


def _forgettable(
    alerts: Iterable[CurrentAlert], last_notified: Mapping[str, LastNotified], now_s: float
) -> list[str]:
    """Alerts at rest whose resolution was delivered long ago."""
    firing = {alert.fingerprint for alert in alerts if alert.is_firing}
    long_ago_s = now_s - _FORGET_AFTER_S
    return [
        fingerprint
        for fingerprint, last in last_notified.items()
        if last.kind == "resolved" and last.at_s <= long_ago_s and fingerprint not in firing
    ]


def _earliest_due_s(views: Iterable[AlertNews], free_at_s: float) -> float | None:
    # An acknowledgement does not wait for the group's next turn, and may follow a silence's end.
    due_s = (
        view.due_s if view.alert.is_acked else max(view.due_s, free_at_s)
        for view in views
        if view.due_s is not None
    )
    return min(due_s, default=None)
