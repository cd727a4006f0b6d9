"""What every message says beside its sentences: for programs, and in short for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app import words
from app.alerts.alert import Blame, Detail
from app.alerts.formats.json_text import rfc3339
from app.alerts.notice import Notice, NoticeKind, Told

_MOST_NAMED = 3
_HEADINGS: dict[NoticeKind, str] = {
    "firing": "Firing",
    "resolved": "Resolved",
    "acknowledged": "Acknowledged",
    "test": "Test",
    "notifier-unhealthy": "Not delivered",
}


def heading(notice: Notice) -> str:
    """What happened, in a word or two."""
    if notice.is_partly_resolved:
        return "Partly resolved"
    return "Still firing" if notice.is_repeat else _HEADINGS[notice.kind]


def title(notice: Notice) -> str:
    """What happened, to which job, by which rule: one short line."""
    about = ": ".join(part for part in (notice.job_name or notice.job, notice.rule) if part)
    return f"{heading(notice)}: {about}" if about else heading(notice)


def others(notice: Notice) -> str | None:
    """How many alerts are not listed."""
    return f"and {words.counted(notice.num_more, 'more alert')}" if notice.num_more else None


def facts(notice: Notice) -> list[tuple[str, str]]:
    """Name and value of what is known of the alert that is told first, for people."""
    if not notice.alerts:
        return []
    lead = notice.alerts[0]
    known = _facts(notice, lead.detail) if lead.status == "firing" else _facts_of_end(notice, lead)
    return [(name, value) for name, value in known if value is not None]


def who(blame: Blame) -> str | None:
    """The first culprits by name, and how many there are besides."""
    named = [name for culprit in blame.culprits[:_MOST_NAMED] if (name := _culprit(culprit))]
    more = max(blame.num_culprits, len(blame.culprits)) - len(named)
    if not named:
        return None
    return "; ".join(named) + (f" and {words.whole(more)} more" if more > 0 else "")


def content(notice: Notice) -> dict[str, Any]:
    """All of the notice as plain data, for programs."""
    return {
        "kind": notice.kind,
        "is_repeat": notice.is_repeat,
        "is_partly_resolved": notice.is_partly_resolved,
        "project": notice.project,
        "job_id": notice.job,
        "job_name": notice.job_name,
        "rule": notice.rule,
        "severity": notice.severity,
        "sentence": notice.sentence,
        "sub": notice.sub,
        "url": notice.page_url,
        "image_url": notice.image_url,
        "runbook_url": notice.runbook_url,
        "alerts": [_alert(told) for told in notice.alerts],
        "num_more": notice.num_more,
    }


def _facts(notice: Notice, detail: Detail) -> Iterator[tuple[str, str | None]]:
    blame, since = detail.blame, detail.since_step
    yield "Job", notice.job_name or notice.job
    yield "Slowdown", None if detail.slowdown is None else words.ratio(detail.slowdown)
    yield "Since step", None if since is None else words.whole(since)
    yield "Cause", None if blame is None else blame.cause
    yield "Who", _who(detail)
    yield "Costs", _cost(detail)
    yield "Confidence", None if blame is None else words.percent(blame.confidence)


def _facts_of_end(notice: Notice, lead: Told) -> Iterator[tuple[str, str | None]]:
    """What it was, each by a name that says so: how it is now is in the first sentence."""
    was = lead.was or lead.detail
    yield "Job", notice.job_name or notice.job
    yield "Slowdown before", None if was.slowdown is None else words.ratio(was.slowdown)
    yield "Began at step", None if was.since_step is None else words.whole(was.since_step)
    yield "Cause", None if was.blame is None else was.blame.cause
    yield "Who", _who(was)
    yield "Had cost", _cost(was)


def _cost(detail: Detail) -> str | None:
    lost = detail.gpu_hours_lost_per_hour
    if lost is None:
        return words.NOT_MEASURED if detail.on == "silent-worker" else None
    return f"{words.gpu_hours(lost)} each hour"


def _who(detail: Detail) -> str | None:
    return _names(detail) if detail.blame is None else who(detail.blame)


def _names(detail: Detail) -> str | None:
    if not detail.names:
        return None
    named = [words.contained(name) for name in detail.names[:_MOST_NAMED]]
    more = max(detail.num_named, len(detail.names)) - len(named)
    return "; ".join(named) + (f" and {words.whole(more)} more" if more > 0 else "")


def _culprit(culprit: Mapping[str, Any]) -> str:
    dp_rank, stage, host = (culprit.get(name) for name in ("dp_rank", "stage", "host"))
    rank, local_rank = culprit.get("rank"), culprit.get("local_rank")
    place = [f"dp {dp_rank}"] if dp_rank is not None else []
    place += [f"stage {stage}"] if stage is not None else []
    where = words.contained(str(host)) if host is not None else ""
    if not place and rank is None:
        where = f"host {where}" if where else ""
    return words.gpu(rank, ", ".join(place), where, local_rank)


def _alert(told: Told) -> dict[str, Any]:
    return {
        "fingerprint": told.fingerprint,
        "event_id": told.event_id,
        "status": told.status,
        "severity": told.severity,
        "labels": dict(told.labels),
        "sentence": told.sentence,
        "starts_at": rfc3339(told.starts_at_s),
        "ends_at": None if told.ends_at_s is None else rfc3339(told.ends_at_s),
        "threshold": told.threshold,
        "runbook_url": told.runbook_url,
        **_figures(told.detail),
        "was": None if told.was is None else _was(told.was),
    }


def _was(detail: Detail) -> dict[str, Any]:
    return {
        "value": detail.value,
        "slowdown": detail.slowdown,
        "gpu_hours_lost_per_hour": detail.gpu_hours_lost_per_hour,
        "since_step": detail.since_step,
    }


def _figures(detail: Detail) -> dict[str, Any]:
    names: Sequence[str] = detail.names
    return {
        "value": detail.value,
        "slowdown": detail.slowdown,
        "gpu_time_wasted": detail.gpu_time_wasted,
        "gpu_hours_lost_per_hour": detail.gpu_hours_lost_per_hour,
        "num_gpus": detail.num_gpus,
        "since_step": detail.since_step,
        "window": detail.window_id,
        "finding": None if detail.blame is None else _finding(detail.blame),
        "names": list(names),
        "num_named": detail.num_named,
    }


def _finding(blame: Blame) -> dict[str, Any]:
    return {
        "cause": blame.cause,
        "sentence": blame.sentence,
        "cost": blame.cost,
        "confidence": blame.confidence,
        "culprits": [dict(culprit) for culprit in blame.culprits],
        "num_culprits": blame.num_culprits,
    }
