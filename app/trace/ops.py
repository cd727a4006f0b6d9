"""Operation types: one row each. To add one, add its row."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an operation does with its time."""

    COMPUTE = "compute"
    P2P = "p2p"
    COLLECTIVE = "collective"
    ANNOTATION = "annotation"  # kept for diagnosis; neither simulated nor averaged


class Axis(Enum):
    """Whom an operation meets before its transfer can begin."""

    NONE = "none"
    NEIGHBOUR = "neighbour"  # one op of the stage before or after
    STAGES = "stages"  # the same op of other stages of the replica
    DP = "dp"  # the same op of every dp rank
    DP_AND_STAGES = "dp and stages"


class Direction(Enum):
    """Which way through the model a compute or p2p operation goes."""

    NONE = "none"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """How one operation type is replayed (what-if model, sections 2 and 3)."""

    name: str
    kind: Kind
    axis: Axis = Axis.NONE
    direction: Direction = Direction.NONE

    @property
    def idealised_by_mean(self) -> bool:
        """Compute has to be done whoever does it; communication has outliers to be cut off."""
        return self.kind is Kind.COMPUTE


# The position in this tuple is the op type's code in arrays and in stored windows:
# append at the end, never reorder.
OP_SPECS: tuple[OpSpec, ...] = (
    OpSpec("forward-compute", Kind.COMPUTE, direction=Direction.FORWARD),
    OpSpec("backward-compute", Kind.COMPUTE, direction=Direction.BACKWARD),
    OpSpec("optimizer", Kind.COMPUTE),
    OpSpec("gc", Kind.COMPUTE),
    OpSpec("forward-send", Kind.P2P, Axis.NEIGHBOUR, Direction.FORWARD),
    OpSpec("forward-recv", Kind.P2P, Axis.NEIGHBOUR, Direction.FORWARD),
    OpSpec("backward-send", Kind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD),
    OpSpec("backward-recv", Kind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD),
    OpSpec("params-all-gather", Kind.COLLECTIVE, Axis.DP),
    OpSpec("grads-reduce-scatter", Kind.COLLECTIVE, Axis.DP),
    OpSpec("separate-grads-all-reduce", Kind.COLLECTIVE, Axis.DP),
    OpSpec("layernorm-grads-all-reduce", Kind.COLLECTIVE),
    OpSpec("embedding-grads-all-reduce", Kind.COLLECTIVE, Axis.STAGES),
    OpSpec("optimizer-clip-main-grad", Kind.COLLECTIVE, Axis.DP_AND_STAGES),
    OpSpec("gc-pause", Kind.ANNOTATION),
    OpSpec("data-wait", Kind.ANNOTATION),
)

OP_NAMES: tuple[str, ...] = tuple(spec.name for spec in OP_SPECS)
OP_CODES: dict[str, int] = {name: code for code, name in enumerate(OP_NAMES)}
