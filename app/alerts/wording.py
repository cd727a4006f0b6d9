"""An alert in two sentences: how slow, since when and who; then its cost and the confidence.

Present tense, no blame. Text from outside (names of jobs, hosts, subjects) cannot change the
text around it.
"""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from app import formatting
from app.alerts.alert import AlertEventKind, AlertState, Blame, Detail
from app.alerts.facts import worker_of_name
from app.alerts.notice import NoticeAlert
from app.alerts.readings import WINDOW_READINGS, Unit
from app.alerts.rule import On
from app.result.causes import CAUSES, cause_name, cause_phrase
from app.result.clock_times import clock_onset_words
from app.result.words import of_ideal
from app.trace.job import job_of

JOB_ENDED = "the job has ended"
RULE_REMOVED = "the rule was removed"
NO_BASELINE_YET = "the job has restarted: no baseline yet"

_MAX_NAMES = 3


def alert_sentence(
    state: AlertState, kind: AlertEventKind | None = None, reason: str | None = None
) -> str:
    """The first sentence, of an alert as it stands or of what has just happened to it."""
    job = job_of(state.job_id)
    if reason == JOB_ENDED:
        ran_at = state.detail.slowdown
        last = "" if ran_at is None else f" It last ran at {of_ideal(ran_at)}."
        return f"{job} has ended.{last}"
    if reason == RULE_REMOVED:
        return f"The rule {state.rule} no longer watches {_subject_of_job(state, job)}."
    if reason == NO_BASELINE_YET:
        return f"{job} has restarted: its steps have no baseline yet."
    if kind in ("resolved", "cleared"):
        return f"{_resolved_sentence(state, job)}."
    now = f"{_firing_sentence(state, job)}."
    if kind == "no-data" or (kind is None and state.is_no_data):
        return f"No new data of {job}. Last known state: {now}"
    return f"Data come again. {now}" if kind == "data-again" else now


def _firing_sentence(state: AlertState, job: str) -> str:
    detail = state.detail
    if detail.on is not None and detail.on in _SENTENCES and detail.value is not None:
        firing, _ = _SENTENCES[detail.on]
        if detail.on in _SUBJECTS_TO_BLAME and detail.blame is None:
            # It may only wait for others: not blamed.
            firing = "With only the slowness of {subject}, {job} would run at {figure}"
        return f"{_with_figure(firing, detail.on, state, job)}{_since(state)}{_fact(state)}"
    if detail.on == "stalled":
        since = "it began" if detail.since_step is None else _since_words(state)
        return f"No worker of {job} has sent anything since {since}"
    if detail.on == "silent-worker":
        return _missing_data_sentence(state, job)
    if detail.on == "crashed":
        at = "" if detail.since_step is None else f" after {_since_words(state)}"
        return f"{job} has crashed{at}: {detail.ended or 'what ended it is not known'}"
    return f"{job} runs at {of_ideal(detail.slowdown)}{_since(state)}"


def _resolved_sentence(state: AlertState, job: str) -> str:
    detail = state.detail
    if detail.on == "crashed":
        return f"{job} runs again, or has ended well"
    if detail.on == "silent-worker":
        return f"All workers of {job} send again"
    if detail.on == "stalled":
        return f"{job} sends again"
    news = f"{job} has recovered"
    is_known = detail.on != "slowdown" or detail.value is not None
    if detail.on is not None and detail.on in _SENTENCES and is_known:
        _, resolved = _SENTENCES[detail.on]
        news = _with_figure(resolved, detail.on, state, job)
    return f"{news}{_since(state)}{_runs_now(detail)}"


def _with_figure(sentence: str, on: On, state: AlertState, job: str) -> str:
    # The ratio of step times is one of the job to its own past.
    in_words = formatting.ratio if on == "step-time" else _FIGURE_WORDS[WINDOW_READINGS[on].unit]
    figure = in_words(state.detail.value or 0.0)
    return sentence.format(job=job, subject=_subject_words(state), figure=figure)


def _runs_now(detail: Detail) -> str:
    """The job's slowdown now, after one of several causes is over."""
    if detail.on not in ("cause", "worker", "host", "optype") or detail.slowdown is None:
        return ""
    return f"; it runs at {of_ideal(detail.slowdown)} now"


def finding_sentence(blame: Blame) -> str:
    """A finding's fact, without its onset and cost, which alerts have in other places."""
    fact = blame.fact or blame.sentence.removesuffix(".")
    return formatting.with_times_sign(formatting.bidi_isolated(fact))


def _fact(state: AlertState) -> str:
    detail = state.detail
    if detail.blame is not None:
        # The finding may be newer than the alert.
        return f": {finding_sentence(detail.blame)}{_when(detail.blame, state)}"
    return "; no finding names it" if detail.on in _SUBJECTS_TO_BLAME else ""


def _when(blame: Blame, state: AlertState) -> str:
    """Onset and end of the finding, unless the alert's own onset says it already."""
    if blame.end_step is None and blame.since_step == state.detail.since_step:
        return ""
    onset, end = (blame.since_step, blame.since_at_s), (blame.end_step, blame.end_at_s)
    return clock_onset_words(onset, end, "since", None, _day_s(state))


def _missing_data_sentence(state: AlertState, job: str) -> str:
    detail = state.detail
    number = max(detail.num_named, len(detail.names))
    have = "has" if number == 1 else "have"
    after = "" if detail.since_step is None else f" by {_since_words(state)}"
    names = [formatting.bidi_isolated(name) for name in detail.names[:_MAX_NAMES]]
    more = [] if number <= len(names) else [f"{formatting.count(number - len(names))} more"]
    who = f": {'; '.join([*names, *more])}" if names else ""
    return f"{formatting.plural(number, 'worker')} of {job} {have} fallen silent{after}{who}"


def _since(state: AlertState) -> str:
    return "" if state.detail.since_step is None else f", since {_since_words(state)}"


def _since_words(state: AlertState) -> str:
    """Time and step from which on the alert counts; the date where the alert is of another day."""
    detail = state.detail
    return formatting.since_words(detail.since_step or 0, detail.since_at_s, now_s=_day_s(state))


def _day_s(state: AlertState) -> float:
    return state.began_at_s if state.firing_at_s is None else state.firing_at_s


def _worker(state: AlertState) -> str:
    host = state.labels.get("host")
    worker = worker_of_name(state.subject)
    for culprit in () if state.detail.blame is None else state.detail.blame.culprits:
        if (culprit.dp_rank, culprit.stage) == worker:
            return replace(culprit, host=culprit.host or host).name()
    return formatting.worker(*worker, {worker: host} if host else None)


def _subject_of_job(state: AlertState, job: str) -> str:
    if not state.subject:
        return job
    is_worker = state.detail.on == "worker"
    return f"{_worker(state) if is_worker else formatting.bidi_isolated(state.subject)} of {job}"


def _subject_words(state: AlertState) -> str:
    """What the alert is about, in words; the whole name of a cause that is not known."""
    on, subject, blame = state.detail.on, state.subject, state.detail.blame
    if on == "worker":
        return _worker(state)
    if on == "optype":
        return formatting.bidi_isolated(formatting.optype_label(subject))
    if on != "cause" or subject not in CAUSES:
        return formatting.bidi_isolated(subject)
    if blame is None or blame.cause != subject:
        return cause_phrase(subject)
    return cause_phrase(subject, blame.num_culprits)


# Rules whose subjects may be culprits.
_SUBJECTS_TO_BLAME: frozenset[On] = frozenset({"worker", "host"})
_NO_LONGER_SLOWS = "{subject} no longer slows {job} down"
_FIGURE_WORDS: Mapping[Unit, Callable[[float], str]] = {
    "ratio": of_ideal,
    "share": formatting.percent,
    "GPU-hours an hour": formatting.rough_gpu_hours,
    "seconds": formatting.short_seconds,
}
# What is said of each figure while its alert fires, and once it is over.
_SENTENCES: Mapping[On, tuple[str, str]] = {
    "slowdown": (
        "{job} runs at {figure}",
        "{job} runs at {figure} again",
    ),
    "waste": (
        "{job} wastes {figure} of its GPU time",
        "{job} wastes {figure} of its GPU time now",
    ),
    "gpu-hours-lost": ("{job} loses {figure} an hour", "{job} loses {figure} an hour now"),
    "cause": (
        "{job} loses {figure} of its GPU time to {subject}",
        "{job} no longer loses as much to {subject}",
    ),
    "worker": ("{subject} alone slows {job} down to {figure}", _NO_LONGER_SLOWS),
    "host": ("{subject} slows {job} down to {figure}", _NO_LONGER_SLOWS),
    "optype": ("{subject} slows {job} down to {figure}", _NO_LONGER_SLOWS),
    "low-fidelity": (
        "The simulated steps of {job} differ from the recorded ones by {figure}",
        "The simulated steps of {job} are like the recorded ones",
    ),
    "clock-residual": (
        "The clocks of the hosts of {job} are uncertain by {figure}",
        "The clocks of the hosts of {job} are uncertain by {figure} now",
    ),
    "step-time": (
        "Steps of {job} take {figure} as long as before",
        "Steps of {job} take {figure} as long as before",
    ),
}


def cost_sentence(detail: Detail) -> str:
    """What it costs per hour, and how sure the cause is; empty if neither is known."""
    if detail.on == "stalled":
        return f"It has ended, hangs or lost its network.{_cost(detail, 'It costs')}"
    if detail.on == "crashed":
        return "Its GPUs are idle or free; nothing of it runs until it is started again."
    if detail.on == "silent-worker":
        return (
            "In the figures of the others, the medians of the other workers of the same stage "
            "stand in for it where they can; what it costs is not measured."
        )
    if detail.on == "low-fidelity":
        return "Naming a worker or a stage would be a guess."
    cost = _cost(detail, "It costs")
    rest = "" if detail.unexplained is None else f" {detail.unexplained}."
    return f"{cost}{_beside_slowdown(detail)}{_confidence(detail.blame)}{rest}".strip()


def response_sentence(assigned_to: str | None, note: str | None) -> str:
    """Who works on an alert, and the last note on it; empty without both."""
    known = []
    if assigned_to is not None:
        known.append(f"Assigned to {formatting.bidi_isolated(assigned_to)}.")
    if note is not None:
        end = "" if note.endswith((".", "!", "?")) else "."
        known.append(f"Note: {formatting.bidi_isolated(note)}{end}")
    return " ".join(known)


def resolved_cost_sentence(was: Detail, lasted_s: float) -> str:
    """How long a resolved alert lasted, and what it cost in all, by its last notification."""
    if was.on == "crashed":
        return ""
    lasted = f"It lasted {formatting.short_duration(lasted_s)}"
    if was.on == "silent-worker":
        return f"{lasted}. What it cost is not measured."
    lost, num_gpus = was.gpu_hours_lost_per_hour, was.num_gpus
    if lost is None or not num_gpus:
        return f"{lasted}."
    share, gpus = formatting.percent(lost / num_gpus), formatting.plural(num_gpus, "GPU")
    in_all = formatting.rough_gpu_hours(lost * lasted_s / 3600)
    return f"{lasted} and cost {in_all} in all, {share} of the time of {gpus}."


def resolution_sentence(alert: NoticeAlert) -> str:
    """How long a resolved alert of a notice lasted, and what it cost in all."""
    was = alert.was or alert.detail
    ends_at_s = alert.starts_at_s if alert.ends_at_s is None else alert.ends_at_s
    lasted = lasted_s(was, alert.detail, alert.starts_at_s, ends_at_s)
    return resolved_cost_sentence(was, lasted)


def lasted_s(was: Detail, now: Detail, starts_at_s: float, ends_at_s: float) -> float:
    """Seconds from the first step over the threshold to the first one under it.

    Where their times are not known, from the alert's beginning to its end: Unix times. The job's
    clock is not the service's: times of both are never compared.
    """
    if (
        was.since_at_s is not None
        and now.since_at_s is not None
        and now.since_at_s > was.since_at_s
    ):
        return now.since_at_s - was.since_at_s
    return max(0.0, ends_at_s - starts_at_s)


_OF_FIGURES = frozenset(
    ("slowdown", "waste", "gpu-hours-lost", "cause", "worker", "host", "optype", "step-time")
)


def recovery_sentence(was: Detail, now: Detail, lasted_s: float) -> str:
    """What has happened to a job that is well again: from, to, what it was, and what it lost.

    `was` is the alert as it began to fire, `now` as it was resolved; "" of other kinds of alerts.
    """
    cost = resolved_cost_sentence(was, lasted_s)
    if was.on == "stalled":
        return f"Recovered: its workers send again. Before, none sent anything. {cost}"
    if was.on not in _OF_FIGURES or (was.blame is None and was.slowdown is None):
        return ""
    end = "" if now.since_step is None else f" since step {formatting.count(now.since_step)}"
    since = "Before"
    if was.since_step is not None:
        since = f"From step {formatting.count(was.since_step)} until then"
    what = (
        f"the job at {of_ideal(was.slowdown)}"
        if was.blame is None
        else formatting.lower_first(finding_sentence(was.blame))
    )
    return f"Recovered{end}. {since}: {what}. {cost}"


def late_sentence(held_since_s: float | None, now_s: float) -> str:
    """That a message waited until all was processed, since a Unix time; "" where it did not."""
    if held_since_s is None:
        return ""
    since = formatting.utc_time(held_since_s, now_s)
    return f"Told late: Paceline was behind from {since} to {formatting.utc_time(now_s, now_s)}."


def _cost(detail: Detail, begins: str) -> str:
    lost, num_gpus = detail.gpu_hours_lost_per_hour, detail.num_gpus
    if lost is None or not num_gpus:
        return ""
    share, gpus = formatting.percent(lost / num_gpus), formatting.plural(num_gpus, "GPU")
    return f" {begins} {formatting.rough_gpu_hours(lost)} an hour, {share} of the time of {gpus}."


def _beside_slowdown(detail: Detail) -> str:
    """Explain why a cause costs more than the whole job's slowdown shows."""
    slowdown, wasted = detail.slowdown, detail.gpu_time_wasted
    if detail.on != "cause" or slowdown is None or wasted is None or detail.value is None:
        return ""
    if formatting.percent(detail.value) == formatting.percent(wasted) or detail.value < wasted:
        return ""
    return (
        " That is by steps replayed without it: the slowdown of "
        f"{formatting.ratio(slowdown)}, which only compares workers with each other, accounts for "
        f"{formatting.percent(wasted)}."
    )


def _confidence(blame: Blame | None) -> str:
    if blame is None:
        return ""
    confidence = formatting.confidence(blame.confidence)
    return f" Cause: {cause_name(blame.cause)} ({confidence})."
