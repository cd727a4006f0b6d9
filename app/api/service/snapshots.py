"""Snapshots: the report of a job's window as one HTML page, and the headers that it is shown with.

A snapshot holds its data. Its script, Plotly, comes from this service, so that each snapshot takes
kilobytes instead of megabytes.
"""

import base64
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from app import formatting
from app.api.service.job_state import StateThresholds, state_of_window
from app.api.static_files import PLOTLY_PATH
from app.charts.report.html import SERVED_DRAW_SCRIPT, served_report
from app.errors import Conflict
from app.formatting import Hosts
from app.result.window_result import WindowResult

_FONT_PATH = "/static/fonts/inter-latin.woff2"


def _script_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# Nothing but its own data, the service's script and styles: no request can leave the page.
_CSP = (
    f"default-src 'none'; script-src 'self' {_script_hash(SERVED_DRAW_SCRIPT)}; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SNAPSHOT_HEADERS = {
    "content-security-policy": _CSP,
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex, nofollow, noarchive",
    "cache-control": "private, no-store",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A report's page, with the steps that it shows."""

    page: bytes
    window_id: str
    first_step: int
    last_step: int


def make_snapshot(
    job_id: str,
    result: WindowResult,
    hosts: Hosts,
    *,
    now_s: float,
    thresholds: StateThresholds,
) -> Snapshot:
    """The page of a result as it is now; `job_id` is without its project.

    Raises:
        Conflict: the result has no figures yet.
    """
    steps = result.steps
    if not steps or result.slowdown is None:
        raise Conflict("these steps have no figures yet: share the job once a step is analysed")
    state = state_of_window(result.slowdown, result.fidelity.verdict, thresholds)
    at = datetime.fromtimestamp(now_s, UTC)
    notice = (
        f"Snapshot of {formatting.bidi_isolated(job_id)} at {at:%Y-%m-%d %H:%M} UTC, "
        f"steps {formatting.count(steps[0])} to {formatting.count(steps[-1])}"
    )
    page = served_report(
        result,
        state=state,
        hosts=hosts,
        notice=notice,
        script_address=PLOTLY_PATH,
        font_address=_FONT_PATH,
    )
    return Snapshot(page.encode(errors="replace"), str(result.window.id), steps[0], steps[-1])
