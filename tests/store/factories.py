"""Jobs, windows, alerts and receivers with defaults for all fields that a test leaves out."""

from collections.abc import Sequence
from typing import Any

from app.advice.outcome import Prediction, Tracked
from app.advice.signs import Shape, Sign
from app.alerts.alert import AlertEvent, AlertState, Detail, fingerprint
from app.alerts.labels import Matcher, Silence
from app.alerts.notice import Message, Notice, NoticeAlert
from app.alerts.receiver import Receiver
from app.result.stored import StoredByStep
from app.store import audit, fixes, runs
from app.store.alerting import outbox
from app.store.annotations import Annotation
from app.store.credentials.share_links import NewShareLink
from app.store.runs import Registration
from app.store.windows import WindowRecord
from app.trace import ops
from app.trace.job import Parallelism, project_of
from tests.results import window_result

SLOW = Detail(
    on="slowdown",
    value=1.42,
    slowdown=1.42,
    gpu_time_wasted=0.3,
    gpu_hours_lost_per_hour=2.4,
    num_gpus=8,
    since_step=1204,
    window_id="1-16",
)
OWN = ops.parse_op_types(
    [
        {"name": "moe-all-to-all", "kind": "collective", "axis": "ep"},
        {"name": "router", "kind": "compute"},
    ]
)


BY_STEP = StoredByStep(
    optype_slowdown={}, dp_rank_slowdown=(), stage_slowdown=((1.0, 1.25),), worker_slowdown=()
)


def registration(**given: Any) -> Registration:
    """A run of 2 x 2 workers."""
    values: dict[str, Any] = {
        "name": "llm-70b",
        "parallelism": Parallelism(dp_size=2, pp_size=2),
        "num_gpus": 4,
        "framework": None,
        "labels": {},
        "run_key": "run-1",
    }
    return Registration(**values | given)


def register(store: Any, job_id: str = "job", *, now_s: float = 100.0, **given: Any) -> int:
    """Register a run; return its epoch."""
    with store.write() as conn:
        return runs.register(conn, job_id, registration(**given), now_s=now_s).epoch


def window(first_step: int = 0, **given: Any) -> WindowRecord:
    """The first revision of an open window with figures."""
    values: dict[str, Any] = {
        "epoch": 1,
        "first_step": first_step,
        "last_step": first_step,
        "revision": 1,
        "state": "open",
        "num_steps": 1,
        "num_ops": 100,
        "slowdown": 1.25,
        "verdict": "ok",
        "result": window_result(slowdown=1.25, steps=[first_step], step_slowdown=[1.25]),
        "per_step": BY_STEP,
        "trace": None,
        "updated_s": 1000.0,
    }
    return WindowRecord(**values | given)


def alert(
    job_id: str = "job", rule: str = "slowdown", subject: str = "", **given: Any
) -> AlertState:
    """A firing alert."""
    values: dict[str, Any] = {
        "fingerprint": fingerprint(job_id, rule, subject),
        "phase": "firing",
        "severity": "warning",
        "began_at_s": 90.0,
        "firing_at_s": 100.0,
    }
    return AlertState(job_id=job_id, rule=rule, subject=subject, **values | given)


def event(
    job_id: str = "job", rule: str = "slowdown", subject: str = "", **given: Any
) -> AlertEvent:
    """A firing transition."""
    values: dict[str, Any] = {
        "fingerprint": fingerprint(job_id, rule, subject),
        "kind": "firing",
        "at_s": 5.5,
        "severity": "warning",
        "sentence": "It is slow: 1.42.",
        "threshold": 1.1,
        "detail": Detail(value=1.42, slowdown=1.42, since_step=0, window_id="1-8"),
    }
    return AlertEvent(job_id=job_id, rule=rule, subject=subject, **values | given)


def webhook_receiver(endpoint_id: str = "hook", **given: Any) -> Receiver:
    """A webhook receiver."""
    values: dict[str, Any] = {
        "project": "default",
        "name": "on call",
        "format": "standard",
        "url": f"https://receiver.example/{endpoint_id}",
        "secrets": ("whsec_new", "whsec_old"),
        "headers": {"x-team": "a"},
    }
    return Receiver(endpoint_id=endpoint_id, **values | given)


def silence(silence_id: str = "aa", **given: Any) -> Silence:
    """A silence of every alert of jobs of one name, for 100 s."""
    values: dict[str, Any] = {
        "project": "default",
        "kind": "silence",
        "matchers": (Matcher("job", "llm-*"),),
        "starts_s": 100.0,
        "ends_s": 200.0,
        "author": "ops",
        "comment": "new switches",
        "created_s": 100.0,
    }
    return Silence(silence_id=silence_id, **values | given)


def add_message(
    conn: Any,
    endpoint_id: str = "hook",
    *,
    now_s: float = 100.0,
    job_id: str | None = "default/job",
    message: Message | None = None,
    fingerprints: Sequence[str] = ("aa",),
    listed: Sequence[str] = (),
    project: str | None = None,
    **given: Any,
) -> Any:
    """Add a message to a receiver, which need not exist; return its id."""
    values: dict[str, Any] = {
        "notice_id": "notice-1",
        "kind": "firing",
        "group_key": "",
        "project": project or project_of(job_id or ""),
        "job": None,
        "job_name": None,
        "rule": "slowdown",
        "severity": "warning",
        "at_s": now_s,
        "sentence": "",
        "sub": "",
        "about": fingerprints,
        "alerts": [
            NoticeAlert(mark, 1, "firing", "warning", {}, "", now_s, None, Detail())
            for mark in listed
        ],
    }
    message = message or Message('{"a": "é"}')
    return outbox.add(conn, Notice(**values | given), message, endpoint_id, job_id)


def add_audit_entry(conn: Any, project: str = "p", **given: Any) -> None:
    """Add an audit entry."""
    values: dict[str, Any] = {
        "at_s": 1.0,
        "actor": "ops",
        "action": "silence.create",
        "object_kind": "silence",
        "object_id": "x",
        "detail": {},
    }
    audit.add(conn, project=project, **values | given)


def prediction(
    fix: str = "replace-worker", *, epoch: int = 1, first_step: int = 0, **given: Any
) -> Prediction:
    """A prediction of 2 s instead of 2.4 s for a window of 2 x 2 workers."""
    sign = Sign(
        "host", ("slow-worker",), True, epoch, Shape((2, 2, 1, 1, 1, 1), (4.0,), "ab"),
        ("slow-worker",), ((1, 0, "host-1"),),
    )  # fmt: skip
    tracked = Tracked(fix, sign, epoch, first_step, 2.4, **given)
    return Prediction("Replace host-1", 2.0, (1.9, 2.1), 16.0, tracked)


def fix_row(*, fix_id: str, job_id: str, now_s: float = 100.0) -> dict[str, Any]:
    """A row of the table of fixes."""
    record = fixes.FixRecord(fix_id, job_id, prediction(), None, None, now_s, now_s, now_s)
    return fixes.row_of(record)


def annotation(**changes: Any) -> Annotation:
    """An annotation of job `default/a`."""
    usual: dict[str, Any] = {
        "annotation_id": "ab" * 12,
        "project": "default",
        "job_id": "default/a",
        "matchers": (),
        "kind": "deploy",
        "text": "v1.4",
        "host": None,
        "at_s": 100.0,
        "ends_s": None,
        "epoch": None,
        "step": 2**53,
        "source": "ci",
        "author": "ops",
        "created_s": 100.0,
    }
    return Annotation(**usual | changes)


def share_link(**changes: Any) -> NewShareLink:
    """A share link to job `default/a`."""
    usual: dict[str, Any] = {
        "project": "default",
        "job_id": "default/a",
        "author": "ops",
        "expires_s": 1e12,
        "window_id": "1-0",
        "first_step": 0,
        "last_step": 2**53,
        "page": b"<p>",
    }
    return NewShareLink(**usual | changes)
