"""What became of one made fault: was it told, rightly, and told to be over?"""

from dataclasses import dataclass

MIN_COST = 0.10


@dataclass(frozen=True, slots=True)
class Outcome:
    """All but the first four mean nothing where it does not count.

    `missed_at_first` says what the usual time was too short for: all else is then of a fault that
    lasts longer. `early` are sentences that were told before the fault.
    """

    number: int
    kind: str
    what: str
    cost: float
    counts: bool = True
    is_alerted: bool = False
    rule: str | None = None
    sentence: str | None = None
    is_cause_right: bool = False
    has_place: bool = False
    is_culprit_right: bool = False
    is_resolved: bool = False
    missed_at_first: str | None = None
    early: tuple[str, ...] = ()

    @property
    def miss(self) -> str | None:
        """What was not told of it, if anything was not."""
        if not self.is_alerted:
            return "not alerted"
        return None if self.is_resolved else "not resolved"

    @property
    def is_wrong(self) -> bool:
        """Whether anything was missed, or told before it was so."""
        return self.miss is not None or bool(self.early)

    @property
    def is_unsure(self) -> bool:
        """Whether cause or culprit were told wrongly."""
        return not self.is_cause_right or (self.has_place and not self.is_culprit_right)
