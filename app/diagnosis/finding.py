"""What a diagnosis says: causes found, and causes looked at and ruled out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Persistence = Literal["transient", "chronic", "rotating", "progressive"]

# Names of the causes, as results have them.
CAUSES = (
    "slow-worker",
    "late-host",
    "stage-imbalance",
    "sequence-imbalance",
    "gc-pause",
    "slow-link",
    "flapping-link",
    "data-loading",
    "allocator-stall",
    "uniform-slowdown",
    "silent-worker",
)

# Below this score a cause is not named.
MIN_SCORE = 0.5


@dataclass(frozen=True, slots=True, order=True)
class Culprit:
    """Who is to blame, with the fields that apply; None is "does not apply".

    `rank` is the global rank, `local_rank` the GPU's number on its host: more names of the same,
    which make it no other culprit.
    """

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = field(default=None, compare=False)
    local_rank: int | None = field(default=None, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Only the fields that apply."""
        named = {
            "dp_rank": self.dp_rank,
            "stage": self.stage,
            "host": self.host,
            "rank": self.rank,
            "local_rank": self.local_rank,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, with who, since when, what it costs and how we know.

    `score` and `confidence` are within 0..1, `cost` is the share of the job's GPU time that is
    won back when the culprit's operations take what they should, None where that is unknown;
    `cost_range` has the least and the most of it where replay and waits disagree.
    `onset_step` is None where the cause is older than what is known of the job.
    """

    cause: str
    score: float
    confidence: float
    culprits: tuple[Culprit, ...]
    onset_step: int | None
    persistence: Persistence | None
    cost: float | None
    evidence: Mapping[str, Any]
    sentence: str
    cost_range: tuple[float, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding as results carry it (design of the result, section 7)."""
        return {
            "cause": self.cause,
            "score": self.score,
            "confidence": self.confidence,
            "culprits": [culprit.as_json() for culprit in self.culprits],
            "onset_step": self.onset_step,
            "persistence": self.persistence,
            "cost": self.cost,
            "cost_range": None if self.cost_range is None else list(self.cost_range),
            "evidence": dict(self.evidence),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that was looked at and not found, or that the data cannot tell.

    `insufficient` says which of the two: whether evidence is lacking rather than against it.
    """

    cause: str
    reason: str
    insufficient: bool = False
    score: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The cause and the reason, in words and figures."""
        return {
            "cause": self.cause,
            "score": self.score,
            "insufficient_evidence": self.insufficient,
            "reason": self.reason,
            "evidence": dict(self.figures),
        }
