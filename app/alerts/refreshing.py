"""What has to be said again and again: some receivers take for over what they do not hear of.

That is no news. It goes on while an alert is acknowledged, silenced, inhibited or without data,
since none of that makes it over; who was never told of it is not told by this.
"""

from collections.abc import Iterator, Sequence

from app.alerts.plan import Draft, News, Timing
from app.alerts.views import View


def refresh(
    views: Sequence[View], refreshed_at_s: float | None, now_s: float, timing: Timing
) -> Iterator[Draft]:
    """All that fires, if it is time; and, at once, what only these receivers still believe in.

    And what is over while a silence keeps it from people: theirs is not the silence.
    """
    forgets = timing.refresh_s is not None
    over = [
        view.alert.told
        for view in views
        if view.is_over_unsaid or (forgets and view.is_over_silenced)
    ]
    due_s = refresh_due_s(views, refreshed_at_s, timing)
    is_due = due_s is not None and due_s <= now_s
    alive = [view.alert.told for view in views if view.is_kept_alive] if is_due else []
    news: dict[str, News] = dict.fromkeys((told.fingerprint for told in over), "resolved")
    if over or alive:
        yield Draft("refresh", [*over, *alive], news)


def refresh_due_s(
    views: Sequence[View], refreshed_at_s: float | None, timing: Timing
) -> float | None:
    """When (Unix seconds) what fires is to be said again; None where nothing is."""
    if timing.refresh_s is None or not any(view.is_kept_alive for view in views):
        return None
    return 0.0 if refreshed_at_s is None else refreshed_at_s + timing.refresh_s
