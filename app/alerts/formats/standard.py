"""The body of a Standard Webhook: figures for programs, one sentence for people."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from app.alerts.alert import Alert
from app.alerts.wording import gpu_time_wasted, sentence
from app.trace.names import plain, project_of


def body(alert: Alert) -> str:
    """The JSON text that the receiver gets, the same in every attempt."""
    transition = alert.transition
    epoch = int(transition.window_id.split("-")[0])
    worst = alert.worst_worker
    data: dict[str, Any] = {
        "job_id": plain(alert.job_id),
        "project": project_of(alert.job_id),
        "job_name": alert.job_name,
        "epoch": epoch,
        "window": transition.window_id,
        "slowdown": transition.slowdown,
        "threshold": transition.threshold,
        "gpu_time_wasted": gpu_time_wasted(transition.slowdown),
        "since_step": transition.since_step,
        "sentence": sentence(alert),
        "worst_worker": None if worst is None else asdict(worst),
        "url": alert.url,
    }
    message = {
        "type": f"slowdown.{transition.kind}",
        "timestamp": _rfc3339(alert.at_s),
        "data": data,
    }
    return json.dumps(message, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _rfc3339(unix_s: float) -> str:
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
