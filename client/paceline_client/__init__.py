"""Records what a training worker does, and sends it to Paceline without disturbing training."""

from .recorder import Recorder, start
from .registration import Refused, end_job, register
from .transport import Unreachable

__all__ = ["Recorder", "Refused", "Unreachable", "end_job", "register", "start"]
