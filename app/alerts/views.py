"""One alert of a group by itself: is there news of it now, and if not, when may there be?"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from app.alerts.plan import Last, News, Standing, Timing
from app.alerts.silence import Silence

_KNOWN_TO_FIRE = ("firing", "acknowledged", "ended")


@dataclass(frozen=True, slots=True)
class View:
    """One alert now: its news, if it has any; else when it may have some (None: only if woken).

    One that is kept back is in no notice.
    """

    alert: Standing
    last: Last | None
    news: News | None = None
    due_s: float | None = None
    is_kept_back: bool = False

    @property
    def is_known(self) -> bool:
        """Whether people believe that it fires."""
        return self.last is not None and self.last.kind in _KNOWN_TO_FIRE

    @property
    def is_kept_alive(self) -> bool:
        """Whether it fires, and whoever knows it by itself was told so."""
        is_told = self.last is not None and self.last.kind != "resolved"
        return is_told and self.alert.is_firing

    @property
    def is_over_unsaid(self) -> bool:
        """Whether it is over, and only who knows it by itself still believes that it fires."""
        is_lapsed = self.last is not None and self.last.kind == "lapsed"
        return is_lapsed and not self.alert.is_firing

    @property
    def is_over_silenced(self) -> bool:
        """Whether it is over and silenced, so that nobody knows of that so far."""
        is_ended = self.last is not None and self.last.kind == "ended"
        return self.is_known and self.is_kept_back and not self.alert.is_firing and not is_ended

    @property
    def is_context(self) -> bool:
        """Whether a notice lists it beside its news."""
        return self.is_known and self.alert.is_firing and not self.is_kept_back

    @property
    def is_loud(self) -> bool:
        """Whether it may be told again as it is."""
        return self.is_context and not self.alert.is_quiet


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides over each alert alone."""

    silent_until: Mapping[str, float]
    inhibited: Collection[str]
    now_s: float
    timing: Timing

    def view(self, alert: Standing, last: Last | None) -> View:
        """The alert, given what was told of it last."""
        view = View(alert, last)
        if not alert.is_firing and not view.is_known:
            return view
        if alert.fingerprint in self.silent_until:
            due_s = self.silent_until[alert.fingerprint]
            return replace(view, due_s=due_s, is_kept_back=True)
        if not alert.is_firing:
            return self._due(view, "resolved", self.timing.damping_s)
        if alert.fingerprint in self.inhibited:
            due_s = self.now_s + self.timing.interval_s
            return replace(view, due_s=due_s, is_kept_back=True)
        return self._firing(view)

    def _firing(self, view: View) -> View:
        if view.alert.is_acked:
            is_new = view.is_known and view.last is not None and view.last.kind != "acknowledged"
            return replace(view, news="acknowledged" if is_new else None)
        if view.alert.is_no_data:
            return view
        if view.last is not None and view.last.kind == "acknowledged":
            # Nobody looks after it any more: that is news at once, and no repeat.
            return self._due(view, "firing", 0.0)
        if view.alert.is_waning and not view.is_known:
            # It may be over before anybody has got up, unless it grows again.
            return replace(view, due_s=self.now_s + self.timing.interval_s)
        if view.is_known:
            return self._due(view, "repeat", self.timing.repeat_s)
        return self._due(view, "firing", self.timing.damping_s)

    def _due(self, view: View, news: News, after_s: float) -> View:
        # A clock that was set back must not keep anything from being told for hours.
        due_s = self.now_s if view.last is None else min(view.last.at_s, self.now_s) + after_s
        return replace(view, news=news if due_s <= self.now_s else None, due_s=due_s)


def silent_until(
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
