"""Findings: each cause with its culprits, onset, cost and evidence; and the causes ruled out."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from app.result.causes import CAUSES
from app.result.record import Json, Record

Persistence = Literal["transient", "chronic", "rotating", "progressive"]
OnsetForm = Literal["since", "first"]

Cause = Annotated[str, Meta(extra_json_schema={"enum": list(CAUSES)})]
Share = Annotated[float, Meta(ge=0, le=1)]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Culprit(Record, omit_defaults=True, frozen=True, eq=False):
    """A worker, GPU, dp rank, stage or host; what does not apply is None, and left out in JSON.

    `rank` is the first one where `ranks` lists several. Two are equal if they are the same place:
    `dp_rank`, `stage` and `host` count.
    """

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: Annotated[int | None, Meta(description="Global rank.")] = None
    local_rank: Annotated[
        int | None,
        Meta(
            description="Index of the GPU on its host, if the culprit is a single GPU of a worker."
        ),
    ] = None
    ranks: Annotated[
        tuple[int, ...],
        Meta(description="Global ranks, of a host or of a worker with several."),
    ] = ()
    num_workers: Annotated[
        int | None, Meta(description="Workers of a host of which all are affected.")
    ] = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Culprit) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[int | None, int | None, str | None]:
        return self.dp_rank, self.stage, self.host


class SentenceParts(Record, kw_only=True, frozen=True):
    """What a sentence is made of, beside onset, end and cost."""

    fact: Annotated[str, Meta(description="In the present tense.")]
    past_fact: Annotated[str, Meta(description="In the past tense.")]
    onset: Annotated[
        OnsetForm | None,
        Meta(
            description="How the onset is added: 'since step 3', or 'first in step 3' for bursts; "
            "null where the fact has the step."
        ),
    ] = "since"
    note: Annotated[str, Meta(description="A sentence of its own, or empty.")] = ""


class SeenIn(Record, kw_only=True, frozen=True):
    """For a range of windows: in how many of those examined the cause was found."""

    windows: int
    of: int


class NearAnnotation(Record, kw_only=True, frozen=True):
    """An annotation at most 5 steps before an onset. Near in time is no proof of a cause."""

    annotation_id: str
    kind: str
    steps_after: int
    sentence: str


class Finding(Record, kw_only=True, frozen=True):
    """One cause with its culprits, onset, cost and evidence.

    `sentence` is made of `parts`, its onset, end and cost.
    """

    cause: Cause
    score: Share
    confidence: Share
    culprits: tuple[Culprit, ...]
    onset_step: int | None
    end_step: Annotated[
        int | None, Meta(description="The last step with the cause; null while it lasts.")
    ] = None
    persistence: Persistence | None
    cost: Annotated[
        float | None,
        Meta(description="Share of the job's GPU time that the cause costs, from 0 to 1."),
    ]
    cost_range: Annotated[
        tuple[float, float] | None,
        Meta(
            description="The lower and the higher of two cost estimates, from the replay and from "
            "the waits in collectives, if they differ by more than 3 percentage points; otherwise "
            "null."
        ),
    ] = None
    evidence: Mapping[str, Json]
    sentence: Annotated[
        str,
        Meta(description="The fact, its onset and end, and its cost, without a full stop."),
    ]
    parts: SentenceParts | UnsetType = field(name="sentence_parts", default=UNSET)
    onset_at: Annotated[
        Timestamp | UnsetType | None,
        Meta(description="When `onset_step` started; null where not known."),
    ] = UNSET
    ended_at: Annotated[
        Timestamp | UnsetType | None,
        Meta(description="When `end_step` ended; null while it lasts, or where not known."),
    ] = UNSET
    lasted_s: Annotated[
        float | UnsetType | None,
        Meta(
            description="Seconds from `onset_at` to `ended_at` or to the end of the newest step "
            "shown; null where not known."
        ),
    ] = UNSET
    seen_in: SeenIn | UnsetType = UNSET
    after: Annotated[
        tuple[NearAnnotation, ...] | UnsetType,
        Meta(
            description="Annotations at most 5 steps before the onset, the nearest first; missing "
            "if there are none."
        ),
    ] = UNSET


class RuledOut(Record, frozen=True):
    """A cause that was examined and not found; `insufficient` where the data cannot tell."""

    cause: Cause
    reason: str
    insufficient: bool = field(name="insufficient_evidence", default=False)
    score: Share = 0.0
    figures: Mapping[str, Json] = field(name="evidence", default_factory=dict)
