"""What a question consists of: which operations are changed, and how."""

from dataclasses import dataclass

MAX_EDITS = 100

# Beyond these nobody means what they write, and sums of them would no longer be numbers.
MAX_FACTOR = 1e6
MAX_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Selection:
    """The operations that all fields agree on; an empty field agrees to every operation.

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
    """What an operation of its type takes without stragglers."""


@dataclass(frozen=True, slots=True)
class Factor:
    """So many times as long; nothing falls below 0 s."""

    factor: float


@dataclass(frozen=True, slots=True)
class Add:
    """So many seconds longer, or shorter where negative; nothing falls below 0 s."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Set:
    """Exactly so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FromWorker:
    """What that worker's operation of the same type and `seq_id` takes in the same step.

    Operations without such a counterpart keep their durations.
    """

    dp_rank: int
    stage: int


Change = Ideal | Factor | Add | Set | FromWorker


@dataclass(frozen=True, slots=True)
class Edit:
    """Another duration for some operations.

    What changes is an operation's own duration: for one that meets peers, its transfer from the
    last arrival on. Edits apply in order, each to what the ones before have left.
    """

    change: Change
    select: Selection = Selection()
