"""Alerts as an Alertmanager knows them: labels say which one it is, annotations all the rest."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from app import words
from app.alerts.formats.figures import who
from app.alerts.notice import Notice, Told
from app.alerts.second_sentence import sub, sub_of_end
from app.alerts.wording import fact_of

# Whom a diagnosis blames may change while an alert fires, and with other labels it would be
# another alert: these are labels only where the alert is about them.
_CULPRIT_LABELS = ("cause", "worker", "host")
_FNV_START, _FNV_PRIME, _64_BITS = 14695981039346656037, 1099511628211, (1 << 64) - 1
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_NEWS_NAMES = {"test": "PacelineTest", "notifier-unhealthy": "PacelineNotifierUnhealthy"}


@dataclass(frozen=True, slots=True)
class Labelled:
    """One alert; `url` is empty where the page has no address."""

    status: Literal["firing", "resolved"]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at_s: float
    ends_at_s: float | None
    url: str

    @property
    def fingerprint(self) -> str:
        """The Alertmanager's own, a hash of the labels (FNV-1a, 64 bits)."""
        value = _FNV_START
        for name in sorted(self.labels):
            for byte in b"%b\xff%b\xff" % (name.encode(), self.labels[name].encode()):
                value = ((value ^ byte) * _FNV_PRIME) & _64_BITS
        return f"{value:016x}"


def labelled(notice: Notice) -> list[Labelled]:
    """The notice's alerts; of one without any, such as a test, the notice itself."""
    if not notice.alerts:
        return [_of_notice(notice)]
    return [_of_alert(notice, told) for told in notice.alerts]


def _of_alert(notice: Notice, told: Told) -> Labelled:
    return Labelled(
        told.status,
        _labels(told.known_as or told.labels),
        {name: value for name, value in _annotations(notice, told) if value},
        told.starts_at_s,
        told.ends_at_s,
        notice.page_url or "",
    )


def _of_notice(notice: Notice) -> Labelled:
    labels = {
        "alertname": _NEWS_NAMES.get(notice.kind, "Paceline"),
        "project": notice.project,
        "severity": notice.severity,
    }
    annotations = {"summary": notice.sentence, "description": notice.sub}
    told = {name: value for name, value in annotations.items() if value}
    return Labelled("firing", labels, told, notice.at_s, None, notice.page_url or "")


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    subject = labels.get("subject")
    kept: dict[str, str] = {}
    for name in sorted(labels):
        is_passing = name in _CULPRIT_LABELS and labels[name] != subject
        if labels[name] and not is_passing:
            kept.setdefault(_label_name(name), labels[name])
    return kept


def _label_name(name: str) -> str:
    """A name that Prometheus takes: letters, digits and underscores."""
    clean = _NOT_IN_NAMES.sub("_", name)
    return f"_{clean}" if clean[:1].isdigit() or not clean else clean


def _annotations(notice: Notice, told: Told) -> Iterator[tuple[str, str | None]]:
    detail, blame = told.detail, told.detail.blame
    lost, since = detail.gpu_hours_lost_per_hour, detail.since_step
    yield "summary", told.sentence
    yield "description", _description(told)
    yield "slowdown", None if detail.slowdown is None else f"{detail.slowdown:.2f}"
    yield "since_step", None if since is None else str(since)
    yield "gpu_hours_lost_per_hour", None if lost is None else f"{lost:.2f}"
    yield "confidence", words.percent(blame.confidence) if blame else None
    yield "culprits", who(blame) if blame else None
    yield from ((name, told.labels.get(name)) for name in _CULPRIT_LABELS)
    yield "runbook_url", told.runbook_url or notice.runbook_url


def _description(told: Told) -> str:
    """The finding without its own figures, which compare other steps, and what the alert costs."""
    if told.status == "resolved":
        return sub_of_end(told.was or told.detail)
    blame = told.detail.blame
    fact = "" if blame is None else f"{fact_of(blame)}. "
    return f"{fact}{sub(told.detail)}".strip()
