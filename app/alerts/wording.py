"""An alert in a sentence: how slow, since when and who; what it costs is in `second_sentence`.

Present tense, no blame, and nothing from outside has power over the text around it.
"""

import re
from collections.abc import Callable, Mapping

from app import words
from app.alerts.alert import AlertState, Blame, Detail, Kind
from app.alerts.readings.culprits import place_of
from app.alerts.rule import On
from app.trace.names import plain

HAS_ENDED = "the job has ended"
RULE_GONE = "the rule was removed"
NOT_COMPARED = "the job began anew: there is nothing to compare with"

# What a finding's sentence says after the fact; both are said in other places here.
_AFTER_FACT = re.compile(
    r"(?:, since step \d+)?(?:; (?:it costs|hidden by another cause) .*)?$", re.S
)
_MOST_NAMES = 3


def sentence(state: AlertState, kind: Kind | None = None, reason: str | None = None) -> str:
    """The first sentence, of an alert as it stands or of what has just happened to it."""
    job = plain(state.job_id)
    if reason == HAS_ENDED:
        return f"{job} has ended.{_last_figure(state.detail)}"
    if reason == RULE_GONE:
        return f"The rule {state.rule} no longer watches {_whom(state, job)}."
    if reason == NOT_COMPARED:
        return f"{job} began anew: there is nothing yet to compare its steps with."
    if kind in ("resolved", "cleared"):
        return f"{_is_over(state, job)}."
    now = f"{_is_so(state, job)}."
    if kind == "no-data" or (kind is None and state.is_no_data):
        return f"Nothing new is known of {job}. As it last was: {now}"
    return f"Data come again. {now}" if kind == "data-again" else now


def _is_so(state: AlertState, job: str) -> str:
    detail = state.detail
    say = _SO.get(detail.on) if detail.on is not None and detail.value is not None else None
    if say is not None:
        return f"{say(state, job, detail.value or 0.0)}{_since(detail)}{_fact(detail)}"
    if detail.on == "stalled":
        step = detail.since_step
        since = "it began" if step is None else f"step {words.whole(step)}"
        return f"No worker of {job} has sent anything since {since}"
    if detail.on == "silent-worker":
        return _silent(detail, job)
    return f"{job} runs at {_ratio(detail.slowdown)} of its ideal{_since(detail)}"


def _is_over(state: AlertState, job: str) -> str:
    detail = state.detail
    if detail.on in ("stalled", "silent-worker"):
        return (
            f"All workers of {job} send again" if detail.on != "stalled" else f"{job} sends again"
        )
    if detail.on == "slowdown" and detail.value is not None:
        return f"{job} runs at {words.ratio(detail.value)} of its ideal again{_since(detail)}"
    say = _OVER.get(detail.on) if detail.on is not None else None
    told = f"{job} is as it was" if say is None else say(state, job, detail.value or 0.0)
    return f"{told}{_since(detail)}{_runs_now(detail)}"


def _runs_now(detail: Detail) -> str:
    """How the job is, where one of several things that slow it down is over."""
    if detail.on not in ("cause", "worker", "host", "optype") or detail.slowdown is None:
        return ""
    return f"; it runs at {words.ratio(detail.slowdown)} of its ideal now"


def fact_of(blame: Blame) -> str:
    """What a finding says of who does what, without since when and what it costs."""
    return words.signs(words.contained(_AFTER_FACT.sub("", blame.sentence.removesuffix("."), 1)))


def _fact(detail: Detail) -> str:
    if detail.blame is not None:
        # Whoever is to blame now may not have been when the alert began.
        own = detail.blame.since_step
        since = "" if own in (None, detail.since_step) else f", since step {words.whole(own or 0)}"
        return f": {fact_of(detail.blame)}{since}"
    return "; no finding names it" if detail.on in _ACCUSING else ""


def _silent(detail: Detail, job: str) -> str:
    number = max(detail.num_named, len(detail.names))
    have = "has" if number == 1 else "have"
    after = "" if detail.since_step is None else f" by step {words.whole(detail.since_step)}"
    names = [words.contained(name) for name in detail.names[:_MOST_NAMES]]
    more = [] if number <= len(names) else [f"{words.whole(number - len(names))} more"]
    who = f": {'; '.join([*names, *more])}" if names else ""
    return f"{words.counted(number, 'worker')} of {job} {have} fallen silent{after}{who}"


def _last_figure(detail: Detail) -> str:
    if detail.slowdown is None:
        return ""
    return f" It last ran at {words.ratio(detail.slowdown)} of its ideal."


def _since(detail: Detail) -> str:
    return "" if detail.since_step is None else f", since step {words.whole(detail.since_step)}"


def _ratio(slowdown: float | None) -> str:
    return "an unknown ratio" if slowdown is None else words.ratio(slowdown)


def _worker(state: AlertState) -> str:
    host = state.labels.get("host")
    worker = place_of(state.subject)
    return words.worker(*worker, {worker: host} if host else None)


def _whom(state: AlertState, job: str) -> str:
    if not state.subject:
        return job
    return f"{_worker(state) if state.detail.on == 'worker' else _subject(state)} of {job}"


def _subject(state: AlertState) -> str:
    return words.contained(state.subject)


def _slowed(state: AlertState, job: str, value: float, who: str, slows: str) -> str:
    """Without a finding that names it, it may only wait for others: that accuses nobody."""
    figure = f"{words.ratio(value)} of its ideal"
    if state.detail.blame is None:
        return f"With only the slowness of {who}, {job} would run at {figure}"
    return f"{who} {slows} {job} down to {figure}"


# Rules on whoever may be to blame.
_ACCUSING: frozenset[On] = frozenset({"worker", "host"})
_Say = Callable[[AlertState, str, float], str]
_SO: Mapping[On, _Say] = {
    "slowdown": lambda _, job, value: f"{job} runs at {words.ratio(value)} of its ideal",
    "waste": lambda _, job, value: f"{job} wastes {words.percent(value)} of its GPU time",
    "gpu-hours-lost": lambda _, job, value: f"{job} loses {words.gpu_hours(value)} an hour",
    "cause": lambda state, job, value: (
        f"{job} loses {words.percent(value)} of its GPU time to {_subject(state)}"
    ),
    "worker": lambda state, job, value: _slowed(state, job, value, _worker(state), "alone slows"),
    "host": lambda state, job, value: _slowed(state, job, value, _subject(state), "slows"),
    "optype": lambda state, job, value: (
        f"{_subject(state)} slows {job} down to {words.ratio(value)} of its ideal"
    ),
    "low-fidelity": lambda _, job, value: (
        f"The simulated steps of {job} differ from the recorded ones by {words.percent(value)}"
    ),
    "clock-residual": lambda _, job, value: (
        f"The clocks of the hosts of {job} are known to {words.brief(value)} only"
    ),
    "step-time": lambda _, job, value: (
        f"Steps of {job} take {words.ratio(value)} as long as before"
    ),
}
_OVER: Mapping[On, _Say] = {
    "waste": lambda _, job, value: f"{job} wastes {words.percent(value)} of its GPU time now",
    "gpu-hours-lost": lambda _, job, value: f"{job} loses {words.gpu_hours(value)} an hour now",
    "cause": lambda state, job, _: f"{job} no longer loses as much to {_subject(state)}",
    "worker": lambda state, job, _: f"{_worker(state)} no longer slows {job} down",
    "host": lambda state, job, _: f"{_subject(state)} no longer slows {job} down",
    "optype": lambda state, job, _: f"{_subject(state)} no longer slows {job} down",
    "low-fidelity": lambda _, job, __: f"The simulated steps of {job} are like the recorded ones",
    "clock-residual": lambda _, job, value: (
        f"The clocks of the hosts of {job} are known to {words.brief(value)} again"
    ),
    "step-time": lambda _, job, value: (
        f"Steps of {job} take {words.ratio(value)} as long as before"
    ),
}
