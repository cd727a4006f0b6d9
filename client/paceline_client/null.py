"""A recorder that records nothing, with all that a recorder has."""

from __future__ import annotations

from . import lifetime
from .buffer import Buffer
from .recorder import Recorder


class NullRecorder(Recorder):
    """Stands in where nothing is to be recorded, so that the training script need not ask."""

    def __init__(self) -> None:
        super().__init__(Buffer(0, 1.0), sender=None)
        lifetime.ended(self)
        self.turn_off()


NULL = NullRecorder()
