"""Alerts as planning sees them, of which only what a test names matters."""

from dataclasses import replace
from typing import Any

from app.alerts.alert import Blame, Detail
from app.alerts.labels import Matcher, Silence
from app.alerts.notice import NoticeAlert
from app.alerts.planning import CurrentAlert
from app.alerts.receiver import Receiver

FOR_EVER_S = 1e12
_FLAGS = ("is_acked", "is_no_data", "is_waning")


def told(fingerprint: str, **given: Any) -> NoticeAlert:
    """The alert that fires since 1,000 s."""
    values: dict[str, Any] = {
        "event_id": 1,
        "status": "firing",
        "severity": "warning",
        "labels": {"job": "llm-70b", "subject": fingerprint, "severity": "warning"},
        "sentence": f"llm-70b is slow because of {fingerprint}.",
        "starts_at_s": 1000.0,
        "ends_at_s": None,
        "detail": Detail(value=1.4, blame=Blame("slow-worker", "why", 0.2, 0.9)),
    }
    return NoticeAlert(fingerprint, **values | given)


def firing(fingerprint: str = "a", **given: Any) -> CurrentAlert:
    """An alert that fires."""
    flags = {name: given.pop(name) for name in _FLAGS if name in given}
    return CurrentAlert(told(fingerprint, **given), **flags)


def resting(fingerprint: str = "a", **given: Any) -> CurrentAlert:
    """An alert that fires no more."""
    return CurrentAlert(told(fingerprint, status="resolved", ends_at_s=2000.0, event_id=2, **given))


def silence(subject: str = "*", *, starts_s: float = 0.0, ends_s: float = FOR_EVER_S) -> Silence:
    """Whoever has this subject is told to nobody."""
    matchers = (Matcher("subject", subject),)
    return Silence("s", "default", "silence", matchers, starts_s, ends_s, "ada", "", 0.0)


def make_receiver(endpoint_id: str = "hook", **given: Any) -> Receiver:
    """One that wants everything."""
    usual = Receiver(endpoint_id, "default", endpoint_id, "standard", "https://receiver.example/")
    return replace(usual, **given)
