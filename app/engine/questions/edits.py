"""The parts of a question: the operations that are changed, and the changes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MAX_EDITS = 100

# Limits of plausible values; sums of larger ones could overflow.
MAX_FACTOR = 1e6
MAX_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Selection:
    """The operations that match all fields; an empty field matches every operation.

    `op_types` are names of op types, or of groups of them (see `op_names`). `workers` are
    (dp rank, stage). A micro-batch is that of the operation itself: in published traces only
    computations have one.
    """

    op_types: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    dp_ranks: tuple[int, ...] = ()
    workers: tuple[tuple[int, int], ...] = ()
    steps: tuple[int, ...] = ()
    microbatches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ideal:
    """The ideal duration of the operation's type."""


@dataclass(frozen=True, slots=True)
class Factor:
    """The recorded duration times a factor; nothing falls below 0 s."""

    factor: float


@dataclass(frozen=True, slots=True)
class Add:
    """The recorded duration plus some seconds, minus where negative; nothing falls below 0 s."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Set:
    """Exactly so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FromWorker:
    """The duration of that worker's operation with the same type and `seq_id` in the same step.

    Operations without such a counterpart keep their durations.
    """

    dp_rank: int
    stage: int


DurationChange = Ideal | Factor | Add | Set | FromWorker


@dataclass(frozen=True, slots=True)
class Edit:
    """Another duration for some operations.

    It changes the own duration: with peers, the transfer from the last arrival. Edits apply in
    order, each to the result of the previous ones.
    """

    change: DurationChange
    select: Selection = Selection()


def edits_as_json(edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """The edits as the body of a what-if question has them; fields without values are left out."""
    return [
        {
            "select": {
                name: [list(value) if isinstance(value, tuple) else value for value in values]
                for name, values in asdict(edit.select).items()
                if values
            },
            "change": _change_as_json(edit.change),
        }
        for edit in edits
    ]


def _change_as_json(change: DurationChange) -> dict[str, Any]:
    match change:
        case Ideal():
            return {"kind": "ideal"}
        case Factor(value):
            return {"kind": "factor", "value": value}
        case Add(value):
            return {"kind": "add", "value": value}
        case Set(value):
            return {"kind": "set", "value": value}
        case FromWorker(dp_rank, stage):
            return {"kind": "from-worker", "dp_rank": dp_rank, "stage": stage}
