"""Notices and endpoints of which only what a test names matters."""

from typing import Any

from app.alerts.alert import Blame, Detail
from app.alerts.notice import Notice, NoticeAlert
from app.alerts.receiver import Receiver
from app.result.finding import Culprit

SECRET = "whsec_" + "c2VjcmV0" * 4
OLD_SECRET = "whsec_" + "b2xkZXIh" * 4

BLAME = Blame(
    cause="slow-worker",
    sentence="dp 3, stage 1 on host-017 is 1.6x slower than its peers",
    cost=0.29,
    confidence=0.9,
    culprits=(Culprit(3, 1, "host-017"),),
    num_culprits=1,
)
DETAIL = Detail(
    on="slowdown",
    value=1.42,
    slowdown=1.42,
    gpu_time_wasted=0.296,
    gpu_hours_lost_per_hour=18.9,
    num_gpus=64,
    since_step=1204,
    window_id="2-1220",
    blame=BLAME,
)
LABELS = {
    "alertname": "PacelineSlowdown",
    "project": "default",
    "job": "llm-70b",
    "rule": "slowdown",
    "severity": "warning",
    "cause": "slow-worker",
    "worker": "3-1",
    "host": "host-017",
    "team": "pretraining",
}


def told(**given: Any) -> NoticeAlert:
    """The slowdown of llm-70b fires."""
    values: dict[str, Any] = {
        "fingerprint": "0123456789abcdef",
        "event_id": 7,
        "status": "firing",
        "severity": "warning",
        "labels": LABELS,
        "sentence": "llm-70b runs at 1.42\u00d7 of its ideal, since step 1,204: dp 3, stage 1 on "
        "host-017 is 1.6\u00d7 slower than its peers.",
        "starts_at_s": 1_700_000_000.25,
        "ends_at_s": None,
        "detail": DETAIL,
        "threshold": 1.1,
        "runbook_url": "https://runbooks.example/slow",
    }
    return NoticeAlert(**values | given)


def notice(**given: Any) -> Notice:
    """What is told of that."""
    alerts = given.get("alerts", (told(),))
    values: dict[str, Any] = {
        "notice_id": "n-1",
        "kind": "firing",
        "group_key": '{}:{job="llm-70b", project="default", rule="slowdown"}',
        "project": "default",
        "job": "llm-70b",
        "job_name": "llm-70b",
        "rule": "slowdown",
        "severity": "warning",
        "at_s": 1_700_000_030.5,
        "sentence": alerts[0].sentence if alerts else "This is a test.",
        "sub": "It costs 19 GPU-h an hour, 30 % of the time of 64 GPUs. "
        "Cause: slow worker (high confidence, 90 %).",
        "alerts": alerts,
        "page_url": "https://paceline.example/jobs/llm-70b?window=2-1220",
        "runbook_url": "https://runbooks.example/slow",
        "base_url": "https://paceline.example",
        "group_labels": {"job": "llm-70b", "project": "default", "rule": "slowdown"},
    }
    return Notice(**values | given)


def make_receiver(format_: str = "standard", **given: Any) -> Receiver:
    """A receiver that wants everything."""
    values: dict[str, Any] = {
        "endpoint_id": "ep_1",
        "project": "default",
        "name": "on-call",
        "format": format_,
        "url": "mailto:on-call@example.com" if format_ == "email" else "https://receiver.example/x",
        "secrets": (SECRET,),
    }
    return Receiver(**values | given)
