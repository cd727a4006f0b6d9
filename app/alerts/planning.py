"""Who is told what now? The alerts of one rule on one job, against what was told of them before.

A notice lists all alerts of the group that receivers know to fire, since many of them keep one
incident for all; some of what it lists is news, and without news there is no notice. Nothing is
sent or saved here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from app.alerts.plan import Draft, Last, News, Plan, Standing, Timing
from app.alerts.refreshing import refresh, refresh_due_s
from app.alerts.silence import Silence
from app.alerts.views import Rules, View, silent_until

# Longer than a message may be on its way: who sends it asks what its alerts are called.
_FORGOTTEN_AFTER_S = 86_400.0


def plan(
    alerts: Sequence[Standing],
    told: Mapping[str, Last],
    *,
    silences: Sequence[Silence],
    inhibited: Collection[str],
    last_at_s: float | None,
    now_s: float,
    timing: Timing,
    refreshed_at_s: float | None = None,
) -> Plan:
    """What to tell of these alerts now.

    Args:
        alerts: those that fire, and those at rest of which somebody believes that they fire.
        told: by fingerprint, what was told last.
        silences: of the project.
        inhibited: fingerprints of alerts that others keep back.
        last_at_s: when the group's last notice was.
        now_s: Unix time.
        timing: how often at most, and how often at least.
        refreshed_at_s: since when nothing was refreshed; None where it never was.
    """
    labels = {alert.fingerprint: alert.told.labels for alert in alerts}
    rules = Rules(silent_until(labels, silences, now_s), inhibited, now_s, timing)
    views = [rules.view(alert, told.get(alert.fingerprint)) for alert in alerts]
    notices, free_at_s = _notices(views, last_at_s, now_s, timing)
    if refreshed_at_s is not None:
        refreshed_at_s = min(refreshed_at_s, now_s)  # by a clock that was set back
    again = list(refresh(views, refreshed_at_s, now_s, timing))
    if again or not any(view.is_kept_alive for view in views):
        refreshed_at_s = now_s
    drafts = [*_acknowledgement(views), *notices, *again]
    after = _told_after(drafts, views, told, now_s)
    left = [rules.view(each.alert, after.get(each.alert.fingerprint, each.last)) for each in views]
    due_s = (_earliest(left, free_at_s), refresh_due_s(left, refreshed_at_s, timing))
    return Plan(
        drafts,
        after,
        _over(alerts, {**told, **after}, now_s),
        min((each for each in due_s if each is not None), default=None),
        refreshed_at_s,
        known=[view.alert.told for view in views if view.is_context],
        loud=[view.alert.fingerprint for view in views if view.is_loud],
    )


def _notices(
    views: Sequence[View], last_at_s: float | None, now_s: float, timing: Timing
) -> tuple[list[Draft], float]:
    """The group's notice, if it is time for one; and from when on there may be another."""
    free_at_s = now_s if last_at_s is None else min(last_at_s, now_s) + timing.interval_s
    notices = list(_notice(views, now_s, timing)) if free_at_s <= now_s else []
    return notices, now_s + timing.interval_s if notices else free_at_s


def _acknowledgement(views: Iterable[View]) -> Iterable[Draft]:
    """Once everything that receivers know to fire is acknowledged: they have one incident for it.

    It does not wait for the group's next turn: somebody waits for the noise to stop.
    """
    known = [view for view in views if view.is_context]
    news: dict[str, News] = {
        view.alert.fingerprint: "acknowledged" for view in known if view.news == "acknowledged"
    }
    if news and all(view.alert.is_acked for view in known):
        yield Draft("acknowledged", [view.alert.told for view in known], news)


def _notice(views: Sequence[View], now_s: float, timing: Timing) -> Iterable[Draft]:
    news: dict[str, News] = {
        view.alert.fingerprint: view.news
        for view in views
        if view.news is not None and view.news != "acknowledged"
    }
    if not news:
        return
    if set(news.values()) == {"repeat"}:
        # All that can be repeated, now that something is: not each at a time of its own.
        news |= dict.fromkeys(_repeatable(views, now_s, timing), "repeat")
    listed = [view for view in views if view.is_context or view.alert.fingerprint in news]
    is_firing = any(view.alert.is_firing for view in listed)
    yield Draft("firing" if is_firing else "resolved", [each.alert.told for each in listed], news)


def _repeatable(views: Iterable[View], now_s: float, timing: Timing) -> list[str]:
    return [
        view.alert.fingerprint
        for view in views
        if view.is_loud and view.last is not None and view.last.at_s + timing.damping_s <= now_s
    ]


def _told_after(
    drafts: Iterable[Draft], views: Iterable[View], told: Mapping[str, Last], now_s: float
) -> dict[str, Last]:
    after: dict[str, Last] = {}
    for draft in drafts:
        if draft.kind == "refresh":
            after |= _refreshed(draft, told)
            continue
        for fingerprint, news in draft.news.items():
            if news == "acknowledged":
                after[fingerprint] = Last("acknowledged", told[fingerprint].at_s)
            else:
                after[fingerprint] = Last("resolved" if news == "resolved" else "firing", now_s)
        if draft.kind == "resolved":
            # Receivers take the whole group for resolved. What is kept back and fires on is news
            # once it is kept back no more.
            kept = (view.alert for view in views if view.is_kept_back and view.is_known)
            after |= {each.fingerprint: Last("lapsed", now_s) for each in kept if each.is_firing}
    return after


def _refreshed(draft: Draft, told: Mapping[str, Last]) -> dict[str, Last]:
    """What people were told stays as it was: only who knows each alert was told more."""
    after: dict[str, Last] = {}
    for alert in draft.listed:
        last = told.get(alert.fingerprint)
        if last is None:
            continue
        if alert.fingerprint in draft.news:
            is_known = last.kind != "lapsed"
            now = Last("ended" if is_known else "resolved", last.at_s)
            after[alert.fingerprint] = now
        elif last.kind == "ended":
            after[alert.fingerprint] = Last("firing", last.at_s)
    return after


def _over(alerts: Iterable[Standing], told: Mapping[str, Last], now_s: float) -> list[str]:
    """Alerts at rest of which nothing is left to tell, nor under way to be told."""
    firing = {alert.fingerprint for alert in alerts if alert.is_firing}
    resolved = {each: last.at_s for each, last in told.items() if last.kind == "resolved"}
    long_ago_s = now_s - _FORGOTTEN_AFTER_S
    return [each for each, at_s in resolved.items() if each not in firing and at_s <= long_ago_s]


def _earliest(views: Iterable[View], free_at_s: float) -> float | None:
    # An acknowledgement does not wait for the group's next turn, and may follow a silence's end.
    due_s = (
        view.due_s if view.alert.is_acked else max(view.due_s, free_at_s)
        for view in views
        if view.due_s is not None
    )
    return min(due_s, default=None)
