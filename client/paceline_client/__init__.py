"""Records operations of a training worker and sends them to Paceline.

Read `startup.py` first (`start`), then `recorder.py`. Training scripts import this package; it
imports nothing of `app`.
Imported by: cli, ingest, watch.
"""

from .recorder import NULL, NullRecorder, Recorder
from .self_check import check
from .sending.registration import Refused, end_job, register
from .sending.transport import Unreachable
from .startup import start
from .topology import Topology

__all__ = [
    "NULL",
    "NullRecorder",
    "Recorder",
    "Refused",
    "Topology",
    "Unreachable",
    "check",
    "end_job",
    "register",
    "start",
]
