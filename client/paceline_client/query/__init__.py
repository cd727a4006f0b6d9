"""What Paceline knows, as rows: jobs, windows, findings, workers, steps, alerts and scores.

from paceline_client.query import Paceline

with Paceline("https://paceline.example.com", token) as paceline:
    for row in paceline.steps("llm-70b"):
        print(row["step"], row["slowdown"])
    frame = paceline.workers("llm-70b").to_pandas()
"""

from .errors import Busy, Denied, NoAnswer, NotFound, QueryError, Refused
from .paceline import Paceline
from .row_types import (
    ActiveAlertRow,
    AlertRow,
    FindingRow,
    JobRow,
    ScoreReportRow,
    ScoreRow,
    StepRow,
    WindowRow,
    WorkerRow,
)
from .rows import Rows

__all__ = [
    "ActiveAlertRow",
    "AlertRow",
    "Busy",
    "Denied",
    "FindingRow",
    "JobRow",
    "NoAnswer",
    "NotFound",
    "Paceline",
    "QueryError",
    "Refused",
    "Rows",
    "ScoreReportRow",
    "ScoreRow",
    "StepRow",
    "WindowRow",
    "WorkerRow",
]
