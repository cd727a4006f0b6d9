"""Findings: each cause with its culprits, onset, cost and evidence; and the causes ruled out."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, field

from app.formatting import culprit_name
from app.result.causes import CAUSES
from app.result.record import Json, Record

Persistence = Literal["transient", "chronic", "rotating", "progressive"]
OnsetForm = Literal["since", "first"]
# Rows of the recording say it; it follows from timings; it follows from what did not come.
Basis = Literal["recorded", "concluded", "not-recorded"]

# In the evidence: the cost after the repair of other causes, which hide it now.
HIDDEN_COST = "cost_after_other_repairs"
# Its name in 0.1.0, which 0.2.0 has beside it.
OLD_HIDDEN_COST = "cost_once_others_are_mended"

Cause = Annotated[str, Meta(extra_json_schema={"enum": list(CAUSES)})]
# Bounds are for readers: a digit beyond one must not make a stored result unreadable.
Share = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Culprit(Record, frozen=True, eq=False):
    """A worker, GPU, dp rank, stage or host; what does not apply is None, and left out in JSON.

    `ranks` are all of a worker, a GPU or a host, also where it is one. Two are equal if they are
    the same place: `dp_rank`, `stage` and `host` count.
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
        Meta(
            description="All global ranks of a worker, a GPU or a host, also where it is one; "
            "absent for a dp rank or a stage."
        ),
    ] = ()
    num_workers: Annotated[
        int | None, Meta(description="Workers of a host of which all are affected.")
    ] = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Culprit) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    def name(self, *, names_unknown_host: bool = False) -> str:
        """By host, ranks and place (`formatting.culprit_name`); "" where none is known."""
        fields = {field: getattr(self, field) for field in self.__struct_fields__}
        return culprit_name(**fields, names_unknown_host=names_unknown_host)

    @property
    def _place(self) -> tuple[int | None, int | None, str | None]:
        return self.dp_rank, self.stage, self.host


class SentenceParts(Record, kw_only=True, frozen=True, omit_defaults=False):
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
    """For a range of windows: how many of those examined show the cause."""

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
    onset_step: Annotated[
        int | None,
        Meta(description="The first step with the cause; null where that is not known."),
    ]
    end_step: Annotated[
        int | None, Meta(description="The last step with the cause; null while it lasts.")
    ]
    persistence: Persistence | None
    cost: Annotated[
        float | None,
        Meta(description="Share of the job's GPU time that the cause costs, from 0 to 1."),
    ]
    cost_range: Annotated[
        tuple[float, float] | None,
        Meta(
            description="The lower and the higher of two cost estimates, from the replay and from "
            "the waits in collectives, if they differ by more than 2 percentage points; otherwise "
            "null."
        ),
    ]
    evidence: Mapping[str, Json]
    sentence: Annotated[
        str,
        Meta(description="The fact, its onset and end, and its cost, without a full stop."),
    ]
    parts: SentenceParts | None = field(name="sentence_parts", default=None)
    onset_by_step: Annotated[
        int | None,
        Meta(
            description="Where `onset_step` is not known, the first step that shows the cause: it "
            "began there or before; otherwise absent."
        ),
    ] = None
    onset_at: Annotated[
        Timestamp | None,
        Meta(description="When `onset_step` started; absent where not known."),
    ] = None
    ended_at: Annotated[
        Timestamp | None,
        Meta(description="When `end_step` ended; absent while it lasts, or where not known."),
    ] = None
    lasted_s: Annotated[
        float | None,
        Meta(
            description="Seconds from `onset_at` to `ended_at` or to the end of the newest step "
            "shown; absent where not known."
        ),
    ] = None
    basis: Annotated[
        Basis | None,
        Meta(
            description="What the cause rests on: `recorded` rows, `concluded` from timings, or "
            "what was `not-recorded`."
        ),
    ] = None
    seen_in: SeenIn | None = None
    after: Annotated[
        tuple[NearAnnotation, ...] | None,
        Meta(
            description="Annotations at most 5 steps before the onset, the nearest first; missing "
            "if there are none."
        ),
    ] = None

    @property
    def is_of_microbatches(self) -> bool:
        """Whether it names forwards or backwards, or no operations: not the optimizer alone."""
        optypes = self.evidence.get("optypes")
        if not isinstance(optypes, Sequence) or not optypes:
            return True
        return not {"forward-compute", "backward-compute"}.isdisjoint(optypes)


class Unchecked(Record, kw_only=True, frozen=True):
    """A cause that the recording cannot show."""

    cause: Cause
    record: Annotated[str, Meta(description="What to record to see it.")]


ObservationKind = Literal[
    "idle-between-steps", "uneven-microbatches", "first-steps", "waits-not-recorded"
]


class ObservationRecord(Record, kw_only=True, frozen=True):
    """A fact without a cause, such as idle time between steps."""

    kind: ObservationKind
    share: Annotated[float | None, Meta(description="Of the GPU time; null where not known.")]
    sentence: str


class HangRecord(Record, kw_only=True, frozen=True):
    """Ranks that the others wait for without an end."""

    ranks: Annotated[tuple[int, ...], Meta(description="Empty where no rank can be told.")]
    kind: Literal["host", "device", "mismatch", "cycle"] | None
    since_at: Timestamp | None
    sentence: str


class RuledOut(Record, frozen=True, omit_defaults=False):
    """A cause that was examined and denied; `insufficient` where the data cannot tell."""

    cause: Cause
    reason: str
    insufficient: bool = field(name="insufficient_evidence", default=False)
    score: Share = 0.0
    figures: Mapping[str, Json] = field(name="evidence", default_factory=dict)
