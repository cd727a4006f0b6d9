"""Heading, title and facts of a notice, as messages for people show them."""

from collections.abc import Iterator, Sequence

from app import formatting
from app.alerts.alert import Blame, Detail, SuggestedFix
from app.alerts.notice import Notice, NoticeAlert, NoticeKind
from app.result.words import fix_wins

_MAX_NAMED = 3
_HEADINGS: dict[NoticeKind, str] = {
    "firing": "Firing",
    "resolved": "Resolved",
    "acknowledged": "Acknowledged",
    "test": "Test",
    "notifier-unhealthy": "Not delivered",
    "fix-outcome": "Fix measured",
    "service-down": "Paceline does not work",
    "service-up": "Paceline works again",
    "heartbeat": "Heartbeat",
}


def notice_heading(notice: Notice) -> str:
    """Heading: the kind of notice in a word or two."""
    if notice.is_partly_resolved:
        return "Partly resolved"
    return "Still firing" if notice.is_repeat else _HEADINGS[notice.kind]


def notice_title(notice: Notice) -> str:
    """Heading, job and rule on one short line."""
    about = ": ".join(part for part in (notice.job_name or notice.job, notice.rule) if part)
    return f"{notice_heading(notice)}: {about}" if about else notice_heading(notice)


def unlisted_alerts(notice: Notice) -> str | None:
    """How many alerts are not listed."""
    return f"and {formatting.plural(notice.num_more, 'more alert')}" if notice.num_more else None


def notice_facts(notice: Notice) -> list[tuple[str, str]]:
    """Names and values of the first alert's facts, for people."""
    if not notice.alerts:
        return []
    lead = notice.alerts[0]
    known: Iterator[tuple[str, str | None]] = (
        _firing_facts(notice, lead.detail)
        if lead.status == "firing"
        else _resolved_facts(notice, lead)
    )
    facts = [(name, value) for name, value in known if value is not None]
    if notice.as_of_s is not None and notice.behind_s is not None:
        # For people who read the message later.
        behind = formatting.short_duration(notice.behind_s)
        at = formatting.utc_time(notice.as_of_s, 0.0)
        facts.append(("As of", f"{at}, {behind} before this message"))
    return facts


def culprit_names(blame: Blame) -> str | None:
    """The first culprits by name, and how many there are besides."""
    names = (culprit.name(names_unknown_host=True) for culprit in blame.culprits[:_MAX_NAMED])
    number = max(blame.num_culprits, len(blame.culprits))
    return _first_names([name for name in names if name], number)


def _first_names(named: Sequence[str], number: int) -> str | None:
    """These names, and how many more there are of so many; None without names."""
    if not named:
        return None
    num_more = number - len(named)
    return "; ".join(named) + (f" and {formatting.count(num_more)} more" if num_more > 0 else "")


def fix_text(fix: SuggestedFix) -> str:
    """The fix with its predicted gain."""
    wins = fix_wins(fix.gpu_hours_per_day, fix.gpu_hours_per_day_range)
    title, speed_up = formatting.bidi_isolated(fix.title), formatting.ratio(fix.speed_up)
    return f"{title}: {speed_up} as fast, {wins}"


def _firing_facts(notice: Notice, detail: Detail) -> Iterator[tuple[str, str | None]]:
    blame = detail.blame
    yield "Job", notice.job_name or notice.job
    yield "Slowdown", None if detail.slowdown is None else formatting.ratio(detail.slowdown)
    yield "Since", _since(detail)
    yield "Cause", None if blame is None else blame.cause
    yield "Who", _subjects(detail)
    yield "Costs", _cost(detail)
    yield "Confidence", None if blame is None else formatting.confidence_figure(blame.confidence)
    yield "Fix", None if detail.fix is None else fix_text(detail.fix)
    if detail.fix is not None and detail.fix.command is not None:
        yield f"To paste ({detail.fix.command_label})", detail.fix.command


def _resolved_facts(notice: Notice, lead: NoticeAlert) -> Iterator[tuple[str, str | None]]:
    """Facts from before the resolution; the current state is in the first sentence."""
    was = lead.was or lead.detail
    yield "Job", notice.job_name or notice.job
    yield "Slowdown before", None if was.slowdown is None else formatting.ratio(was.slowdown)
    yield "Began", _since(was)
    yield "Cause", None if was.blame is None else was.blame.cause
    yield "Who", _subjects(was)
    yield "Had cost", _cost(was)


def _since(detail: Detail) -> str | None:
    """Date, time and step: people read messages later."""
    if detail.since_step is None:
        return None
    return formatting.since_words(detail.since_step, detail.since_at_s, now_s=0.0)


def _cost(detail: Detail) -> str | None:
    lost = detail.gpu_hours_lost_per_hour
    if lost is None:
        return formatting.NOT_MEASURED if detail.on == "silent-worker" else None
    return f"{formatting.rough_gpu_hours(lost)} each hour"


def _subjects(detail: Detail) -> str | None:
    if detail.blame is not None:
        return culprit_names(detail.blame)
    names = [formatting.bidi_isolated(name) for name in detail.names[:_MAX_NAMED]]
    return _first_names(names, max(detail.num_named, len(detail.names)))
