"""What a made job really had, and what was said of it."""

from dataclasses import dataclass

Worker = tuple[int, int]  # dp rank, stage
Workers = frozenset[Worker]

# A fault that costs less is too small to be held against anybody.
MIN_COST = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """A cause, and the workers that it names; nobody where it is everybody's."""

    cause: str
    workers: Workers


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that a job had, and what a perfect diagnosis may say of it.

    `kind` is its name in the grid. `answers` are as good as each other, the usual one first; where
    the data cannot tell several causes apart, `or_withheld` names those of which "insufficient
    evidence" is as good. `cost` is the share of the judged steps' time that is won back without
    the fault, None where it costs no time (a silent worker). `onset` is the position among the
    recorded steps from which on the step time has risen for good by the share `step_change`;
    None where the fault has been there from the beginning or comes and goes. `has_place` says
    whether it is a single worker, host or link.
    """

    kind: str
    answers: tuple[Answer, ...]
    cost: float | None
    has_place: bool = False
    onset: int | None = None
    step_change: float = 0.0
    or_withheld: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is large enough to be held against the diagnosis."""
        return self.cost is None or self.cost >= MIN_COST

    @property
    def causes(self) -> frozenset[str]:
        """The causes that are right."""
        return frozenset(answer.cause for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Said:
    """One finding; `onset` is a position among the job's recorded steps."""

    cause: str
    workers: Workers
    confidence: float
    cost: float | None
    onset: int | None
    sentence: str

    def names(self, fault: Fault) -> bool:
        """Whether its cause is the fault's."""
        return self.cause in fault.causes

    def places(self, fault: Fault) -> bool:
        """Whether it blames exactly the workers that are to blame."""
        return any(self.workers == answer.workers for answer in fault.answers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One made job: what it had, and what was said.

    `said` are the findings of the last full window, most costly first; `withheld` the causes
    that it had no evidence on; `early` what was said in windows before that of causes that were
    not there, and in all windows of a healthy job. `num_changes` is how many changes and onsets
    were told in all windows, `num_failed` how many of them could not be analysed.
    `clock_residual_s` is None where there was nothing to tell it from.
    """

    number: int
    what: str
    family: str
    faults: tuple[Fault, ...]
    said: tuple[Said, ...]
    withheld: frozenset[str] = frozenset()
    early: tuple[Said, ...] = ()
    num_changes: int = 0
    num_failed: int = 0
    clock_residual_s: float | None = None
    analysis_s: float = 0.0
    diagnosis_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to be named."""
        return not self.faults

    @property
    def counts(self) -> bool:
        """Whether each of its faults is large enough."""
        return all(fault.counts for fault in self.faults)
