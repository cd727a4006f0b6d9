"""Who is told what, worked out anew each second from all that was ever told: slow, and plain."""

from dataclasses import dataclass, field, replace

from app.alerts.planning import NotificationTiming


@dataclass(frozen=True)
class Now:
    """An alert at one second."""

    fires: bool
    is_acked: bool = False
    is_no_data: bool = False
    is_waning: bool = False
    is_silenced: bool = False
    is_inhibited: bool = False

    @property
    def is_muted(self):
        return self.is_silenced or (self.fires and self.is_inhibited)


@dataclass(frozen=True)
class Sent:
    """A notice: what is news in it, what it lists, and who is kept back while it is sent."""

    at_s: int
    kind: str
    news: dict[str, str]
    listed: frozenset[str]
    left_out: frozenset[str] = frozenset()


@dataclass
class SlowPlanner:
    """Everything that was told of one group."""

    timing: NotificationTiming
    log: list[Sent] = field(default_factory=list)

    def second(self, at_s: int, alerts: dict[str, Now]) -> None:
        """Tell what is to be told in this second."""
        self._acknowledge(at_s, alerts)
        notices = [sent.at_s for sent in self.log if sent.kind != "acknowledged"]
        if notices and at_s < notices[-1] + self.timing.interval_s:
            return
        news = {name: what for name in alerts if (what := self._news(at_s, name, alerts[name]))}
        if set(news.values()) == {"repeat"}:
            for name, now in alerts.items():
                is_repeatable = now.fires and self._believed(name) and not self._is_quiet(now)
                if is_repeatable and at_s >= self._told_at(name) + self.timing.damping_s:
                    news[name] = "repeat"
        if news:
            listed = self._fires_as_known(alerts) | set(news)
            kind = "firing" if any(alerts[name].fires for name in listed) else "resolved"
            left_out = {
                name
                for name, now in alerts.items()
                if kind == "resolved" and now.fires and now.is_muted and self._believed(name)
            }
            self.log.append(Sent(at_s, kind, news, frozenset(listed), frozenset(left_out)))

    def _acknowledge(self, at_s, alerts):
        known = self._fires_as_known(alerts)
        new = {name for name in known if alerts[name].is_acked and not self._ack_is_known(name)}
        if new and all(alerts[name].is_acked for name in known):
            news = dict.fromkeys(new, "acknowledged")
            self.log.append(Sent(at_s, "acknowledged", news, frozenset(known)))

    def _news(self, at_s, name, now):
        known, told_at_s = self._believed(name), self._told_at(name)
        is_damped = told_at_s is not None and at_s < told_at_s + self.timing.damping_s
        if now.is_muted:
            return None
        if not now.fires:
            return "resolved" if known and not (is_damped and self._flaps(name)) else None
        if self._is_quiet(now):
            return None
        if self._ack_is_known(name) and known:
            return "firing"
        if not known:
            return None if is_damped or now.is_waning else "firing"
        return "repeat" if at_s >= told_at_s + self.timing.repeat_s else None

    @staticmethod
    def _is_quiet(now):
        return now.is_acked or now.is_no_data or now.is_muted

    def _fires_as_known(self, alerts):
        return {
            name
            for name, now in alerts.items()
            if now.fires and not now.is_muted and self._believed(name)
        }

    def _last(self, name):
        """When receivers last learned of it, and what they have believed since."""
        for sent in reversed(self.log):
            if sent.kind != "acknowledged" and name in sent.news:
                return sent.at_s, sent.news[name] != "resolved"
            if name in sent.left_out:
                return sent.at_s, False
        return None, False

    def _flaps(self, name):
        """Whether it was told to fire soon after it was told to be over."""
        told = [sent for sent in self.log if sent.kind != "acknowledged" and name in sent.news]
        told += [replace(each, news={name: ""}) for each in self.log if name in each.left_out]
        told.sort(key=lambda sent: sent.at_s)
        over = [at for at, sent in enumerate(told) if sent.news[name] in ("resolved", "")]
        if not over or told[over[-1]].news[name] == "" or over[-1] + 1 == len(told):
            return False
        again_s = told[over[-1] + 1].at_s - told[over[-1]].at_s
        return again_s < 2 * self.timing.damping_s

    def _believed(self, name):
        return self._last(name)[1]

    def _told_at(self, name):
        return self._last(name)[0]

    def _ack_is_known(self, name):
        for sent in reversed(self.log):
            if name in sent.news:
                return sent.kind == "acknowledged"
        return False
