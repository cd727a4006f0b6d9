"""Base of what has no figure and is known by the clock: that nothing comes."""

from abc import ABC, abstractmethod
from typing import ClassVar

from app.alerts.alert import Detail
from app.alerts.facts import SilenceFacts
from app.alerts.rule import On


class Quiet(ABC):
    """Something that holds as long as nothing comes of all workers, or of some."""

    on: ClassVar[On]

    def is_known(self, facts: SilenceFacts) -> bool:
        """Whether it can be told now; an alert stays as it is meanwhile."""
        return True

    @abstractmethod
    def holds(self, facts: SilenceFacts) -> bool:
        """Whether it is so now."""

    @abstractmethod
    def detail(self, facts: SilenceFacts) -> Detail:
        """What a message says of it."""
