"""Records what a training worker does, and sends it to Paceline without disturbing training."""

from .checking import check
from .null import NULL, NullRecorder
from .recorder import Recorder
from .registration import Refused, end_job, register
from .starting import start
from .topology import Topology
from .transport import Unreachable

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
