"""Queries a server, as rows: jobs, windows, findings, workers, steps and alerts.

Read `paceline.py` first. Notebooks and scripts import this package.
Imported by: nothing.

from paceline_client.query import Paceline

with Paceline("https://paceline.example.com", token) as paceline:
    for row in paceline.steps("llm-70b"):
        print(row["step"], row["slowdown"])
    frame = paceline.workers("llm-70b").to_pandas()
"""

from .connection import Busy, Denied, NoAnswer, NotFound, QueryError, Refused
from .paceline import Paceline
from .rows import (
    ActiveAlertRow,
    AlertRow,
    FindingRow,
    FixRow,
    JobRow,
    Rows,
    StepRow,
    WindowRow,
    WorkerRow,
)

__all__ = [
    "ActiveAlertRow",
    "AlertRow",
    "Busy",
    "Denied",
    "FindingRow",
    "FixRow",
    "JobRow",
    "NoAnswer",
    "NotFound",
    "Paceline",
    "QueryError",
    "Refused",
    "Rows",
    "StepRow",
    "WindowRow",
    "WorkerRow",
]
