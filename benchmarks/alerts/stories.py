"""Is what began told once and what is over told once, in stories of one job's alerts?

A story is a row of windows of one job by a simulated clock: one fault, two, one that comes and
goes, one that recovers and returns, or one inside a backlog. Two consumers plan and
send by turns; of two receivers one fails for five minutes. What was delivered is judged: nothing is
told twice, every beginning has its end, ends are not late, and none carries a command.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.alerts.facts import WindowFacts
from app.alerts.guard import SsrfGuard
from app.alerts.planning import NotificationTiming
from app.alerts.receiver import Receiver, next_delay_s
from app.alerts.rule import default_rules
from app.alerts.rules.evaluation import JobAlerts
from app.alerts.sending import Transport
from app.consumer.commit import save_alerts
from app.consumer.context import NotifyContext
from app.consumer.dispatcher import Dispatcher
from app.result.window_result import Snippet, TopFix
from app.settings import Settings
from app.store import as_of, runs, shards
from app.store.alerting import notifications, outbox, receivers
from app.store.credentials.sealing import new_key, parse_keys
from app.store.database import Store
from app.store.migrations import migrate
from app.trace.job import Parallelism, shard_of
from tests.alerts.alert_factories import facts, finding

JOB = "default/made"
_BEGAN_S = 1.7e9
_WINDOW_S = 8.0
_LEASE_S = 30.0
_FAILS_FOR_S = 300.0
_DOWN, _UP = "fails-for-a-while", "answers"
# From the first good window to the message: `keep_firing`, one window, the interval of a group.
_TOLD_WITHIN_S = 60.0
_ENDS_AFTER_S = 1500.0
_CATCHES_UP_S = 0.5  # a window
_COMMAND = "scontrol update nodename=host-1 state=drain"
_NUM_SHARDS = 4


@dataclass(frozen=True, slots=True)
class Story:
    """Slowdown of each window; windows [first, end) are processed only once the last has come."""

    kind: str
    slowdowns: Sequence[float]
    backlog: range = range(0)
    two_faults: Sequence[bool] = ()


def _one(draw: random.Random) -> Story:
    return Story("one fault", [1.0] * 6 + [_slow(draw)] * draw.randint(8, 40) + [1.0] * 60)


def _two(draw: random.Random) -> Story:
    first, both = draw.randint(8, 20), draw.randint(8, 20)
    slow = [1.0] * 4 + [_slow(draw)] * (first + both) + [1.0] * 60
    return Story("two faults", slow, two_faults=[4 + first <= at < 4 + first + both
                                                 for at in range(len(slow))])  # fmt: skip


def _flapping(draw: random.Random) -> Story:
    bouts = [
        level
        for _ in range(draw.randint(3, 6))
        for level in [_slow(draw)] * draw.randint(5, 10) + [1.0] * draw.randint(8, 14)
    ]
    return Story("flapping", [1.0] * 4 + bouts + [1.0] * 120)


def _recovering(draw: random.Random) -> Story:
    bout = [_slow(draw)] * draw.randint(6, 20)
    return Story("recovering", [1.0] * 4 + bout + [1.0] * 130 + bout + [1.0] * 130)


def _in_backlog(draw: random.Random) -> Story:
    told = _one(draw)
    begin = draw.randint(0, 5)
    end = begin + draw.randint(10, len(told.slowdowns) - 40)
    return Story("in a backlog", [*told.slowdowns, *[1.0] * 60], range(begin, end))


KINDS: Sequence[Callable[[random.Random], Story]] = (
    _one,
    _two,
    _flapping,
    _recovering,
    _in_backlog,
)


def _slow(draw: random.Random) -> float:
    return draw.uniform(1.3, 2.5)


@dataclass(frozen=True, slots=True)
class Told:
    """A message that arrived at a receiver: when, and {alert: (status, its event)}; its text.

    While a receiver fails, a beginning that follows an end takes its place.
    """

    at_s: float
    receiver: str
    is_repeat: bool
    alerts: Mapping[str, tuple[str, int]]
    text: str


@dataclass
class Played:
    """What a story's alerts did, and what was told of them."""

    story: Story
    told: list[Told] = field(default_factory=list)
    transitions: list[tuple[float, str, str]] = field(default_factory=list)
    muted: set[str] = field(default_factory=set)  # alerts of rules that another one inhibits
    left: int = 0


class _Stage:
    """One job, two dispatchers, two receivers, a clock."""

    def __init__(self, store: Store, draw: random.Random) -> None:
        self.store, self._draw, self.now_s = store, draw, _BEGAN_S
        rules = default_rules()
        self.job_alerts = JobAlerts(JOB, rules=rules)
        self._inhibited = {name for rule in rules for name in rule.inhibits}
        defaults = {name: setting.default for name, setting in Settings.model_fields.items()}
        timing = NotificationTiming(
            interval_s=defaults["alert_group_interval_s"],
            damping_s=defaults["alert_damping_s"],
        )
        context = NotifyContext(
            store=store,
            transport=Transport(SsrfGuard()),
            default_rules=rules,
            database_time=lambda _: self.now_s,
            timing=timing,
            num_shards=_NUM_SHARDS,
        )
        self._dispatchers = [Dispatcher(context), Dispatcher(context)]
        self._wait_s = float(defaults["alert_group_wait_s"])
        self._fails_from_s = self.now_s + draw.uniform(20.0, 400.0)
        self.shard = shard_of(JOB, _NUM_SHARDS)
        run = runs.Registration("made", Parallelism(2, 1), 16, None, {}, "a")
        with store.write() as conn:
            for name in (_UP, _DOWN):
                url = f"https://{name}.example"
                receivers.add(conn, Receiver(name, "default", name, "standard", url, ("whsec_",)))
            runs.register(conn, JOB, run, now_s=self.now_s)
            for shard in range(_NUM_SHARDS):
                shards.acquire(conn, shard, "me", now_s=self.now_s, lease_s=1e6)

    def look(self, played: Played, facts: Sequence[WindowFacts], *, is_behind: bool) -> None:
        """Evaluate what has been processed by now, plan, and send what is due."""
        changes = [
            change for window in facts for change in self.job_alerts.add_window(window, self.now_s)
        ]
        played.transitions += [
            (self.now_s, event.kind, event.fingerprint)
            for change in changes
            for event in change.events
        ]
        played.muted |= {change.fingerprint for change in changes if change.rule in self._inhibited}
        with self.store.write() as conn:
            if not is_behind:
                as_of.note_taken(conn, "me", {self.shard: 0.0}, now_s=self.now_s)
            save_alerts(conn, JOB, changes)
            for rule in sorted({change.rule for change in changes if change.is_news}):
                notifications.wake_group(conn, JOB, rule, at_s=self.now_s + self._wait_s)
        while self._draw.choice(self._dispatchers).dispatch_due():
            pass
        played.told += self._sent()

    def _sent(self) -> Iterator[Told]:
        with self.store.write() as conn:
            claimed = outbox.claim(conn, now_s=self.now_s, lease_s=_LEASE_S, limit=100)
            for delivery in claimed:
                since_s = self.now_s - self._fails_from_s
                if delivery.endpoint_id == _DOWN and 0 <= since_s < _FAILS_FOR_S:
                    wait_s = next_delay_s(delivery.attempt, self._draw)
                    next_s = None if wait_s is None else self.now_s + wait_s
                    outbox.mark_failed(
                        conn, delivery, detail="500", next_at_s=next_s, now_s=self.now_s
                    )
                    continue
                outbox.mark_delivered(conn, delivery, now_s=self.now_s)
                yield _told(self.now_s, delivery.endpoint_id, delivery.payload)


def _told(at_s: float, receiver: str, payload: str) -> Told:
    data: Mapping[str, Any] = json.loads(payload)["data"]
    alerts = {
        alert["fingerprint"]: (alert["status"], alert["event_id"]) for alert in data["alerts"]
    }
    return Told(at_s, receiver, data["is_repeat"], alerts, payload)


def play(seed: int) -> Played:
    """The story of this number, until long after its end."""
    draw = random.Random(seed)  # noqa: S311
    story = KINDS[seed % len(KINDS)](draw)
    played = Played(story)
    with tempfile.TemporaryDirectory(prefix="paceline-story-") as directory:
        url = f"sqlite:///{Path(directory) / 'alerts.db'}"
        migrate(url)
        store = Store(url, keys=parse_keys(new_key(), "this benchmark"))
        stage = _Stage(store, draw)
        waiting: list[WindowFacts] = []
        for number, slowdown in enumerate(story.slowdowns):
            stage.now_s += _WINDOW_S
            has_second = bool(story.two_faults) and story.two_faults[number]
            waiting.append(_facts(number, slowdown, has_second=has_second))
            is_behind = number in story.backlog
            if not is_behind:
                for late in waiting[:-1]:
                    stage.now_s += _CATCHES_UP_S
                    stage.look(played, [late], is_behind=True)
                del waiting[:-1]
            stage.look(played, [] if is_behind else waiting, is_behind=is_behind)
            waiting = waiting if is_behind else []
        end_s = stage.now_s + _ENDS_AFTER_S
        while stage.now_s < end_s:
            stage.now_s += _WINDOW_S
            stage.look(played, [], is_behind=False)
        played.left = len(stage.job_alerts.states)
        store.close()
    return played


def _facts(number: int, slowdown: float, *, has_second: bool) -> WindowFacts:
    culprits = [("slow-worker", "dp 0, stage 0 on host-1")] if slowdown > 1.1 else []
    if has_second:
        culprits.append(("slow-link", "the link of dp 1, stage 0"))
    findings = [
        finding(cause, sentence=f"{who} is slow, since step {8 * number}", onset_step=None)
        for cause, who in culprits
    ]
    advice = _replace_worker(slowdown) if findings else None
    return facts(number, slowdown, findings=findings, advice=advice)


def _replace_worker(slowdown: float) -> TopFix:
    return TopFix(
        fix="replace-worker",
        cause="slow-worker",
        title="Replace host-1",
        step_s=1.0,
        step_range_s=(1.0, 1.0),
        step_s_before=slowdown,
        speed_up=slowdown,
        gpu_hours_per_day=1.0,
        gpu_hours_per_day_range=(1.0, 1.0),
        confidence=0.9,
        risk="",
        microbatches=None,
        stops_job=True,
        stop_minutes=None,
        pays_after_minutes=None,
        lost_minutes=None,
        lost_is_at_least=False,
        pays_now=None,
        paste=(Snippet(label="Slurm", text=_COMMAND),),
        needs=(),
        what_if=None,
        can_be_tracked=True,
    )


def wrongs_of(played: Played, damping_s: float) -> list[str]:
    """What is wrong with what was told, a sentence each."""
    wrong = [f"{played.left} alerts are left"] if played.left else []
    if not played.told:
        wrong.append("nothing was told")
    elif not played.story.backlog and not any(_COMMAND in message.text for message in played.told):
        wrong.append("the command of what goes on was not told")
    over_s = {alert: at_s for at_s, kind, alert in played.transitions if kind == "resolved"}
    fired = {alert for _, kind, alert in played.transitions if kind == "firing"}
    fired -= played.muted
    for receiver in (_UP, _DOWN):
        said: dict[str, tuple[str, int]] = {}
        for message in filter(lambda told: told.receiver == receiver, played.told):
            news = {
                alert: status
                for alert, status in message.alerts.items()
                if said.get(alert) != status
            }
            if not news and not message.is_repeat:
                wrong.append(f"{receiver}: told again at {message.at_s - _BEGAN_S:.0f} s")
            ended = [alert for alert, (status, _) in news.items() if status == "resolved"]
            if ended and len(ended) == len(message.alerts) and _COMMAND in message.text:
                wrong.append(f"{receiver}: a command for what is over")
            said |= message.alerts
        wrong += [
            f"{receiver}: no end of {alert}" for alert in said if said[alert][0] != "resolved"
        ]
        if receiver == _UP:
            wrong += [f"{receiver}: nothing of {alert}" for alert in sorted(fired - set(said))]
            wrong += _late(played, over_s, damping_s)
    return wrong


def _late(played: Played, over_s: Mapping[str, float], damping_s: float) -> list[str]:
    """Last ends that came later than allowed; one that comes and goes may be damped."""
    told_s = {
        alert: message.at_s
        for message in played.told
        if message.receiver == _UP
        for alert, (status, _) in message.alerts.items()
        if status == "resolved"
    }
    num_fired = Counter(alert for _, kind, alert in played.transitions if kind == "firing")
    return [
        f"the end of {alert} was told {told_s[alert] - at_s:.0f} s late"
        for alert, at_s in over_s.items()
        if alert in told_s
        and told_s[alert] - at_s
        > _TOLD_WITHIN_S + _WINDOW_S + (damping_s if num_fired[alert] > 1 else 0.0)
    ]


def told_wrongly(seed: int) -> tuple[str, list[str]]:
    """The kind of this story, and what was told wrongly in it."""
    played = play(seed)
    return played.story.kind, wrongs_of(
        played, float(Settings.model_fields["alert_damping_s"].default)
    )
