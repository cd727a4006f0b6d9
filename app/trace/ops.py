"""Operation types: one row each. To add one for everybody, add its row.

A job may register types of its own; `OpTypes` is the table of one job.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

COMPUTE_STREAM = "compute"


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
    EP = "ep"  # the same op of every dp rank of its expert-parallel block


class Direction(Enum):
    """Which way through the model a compute or p2p operation goes."""

    NONE = "none"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """How one operation type is replayed (what-if model, sections 2, 3 and 6).

    Operations of one `stream` run one after the other on a worker, in recorded order; "" is none.
    Of a job's own p2p types, the sending one names in `pairs_with` the one that receives, on the
    stage `towards` steps further on.
    """

    name: str
    kind: Kind
    axis: Axis = Axis.NONE
    direction: Direction = Direction.NONE
    stream: str = ""
    pairs_with: str = ""
    towards: int = 0

    @property
    def idealised_by_mean(self) -> bool:
        """Compute has to be done whoever does it; communication has outliers to be cut off."""
        return self.kind is Kind.COMPUTE

    @property
    def group(self) -> str:
        """What a reader calls it: its own name, or one name for a direction's sends and recvs."""
        if self.kind is Kind.P2P and self.direction is not Direction.NONE:
            return f"{self.direction.value}-pp-comm"
        return self.name


# The position in this tuple is the op type's code in arrays and in stored windows:
# append at the end, never reorder.
OP_SPECS: tuple[OpSpec, ...] = (
    OpSpec("forward-compute", Kind.COMPUTE, Axis.NONE, Direction.FORWARD, COMPUTE_STREAM),
    OpSpec("backward-compute", Kind.COMPUTE, Axis.NONE, Direction.BACKWARD, COMPUTE_STREAM),
    OpSpec("optimizer", Kind.COMPUTE),
    OpSpec("gc", Kind.COMPUTE),
    OpSpec("forward-send", Kind.P2P, Axis.NEIGHBOUR, Direction.FORWARD, "forward-send"),
    OpSpec("forward-recv", Kind.P2P, Axis.NEIGHBOUR, Direction.FORWARD, "forward-recv"),
    OpSpec("backward-send", Kind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD, "backward-send"),
    OpSpec("backward-recv", Kind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD, "backward-recv"),
    OpSpec("params-all-gather", Kind.COLLECTIVE, Axis.DP, stream="dp-comm"),
    OpSpec("grads-reduce-scatter", Kind.COLLECTIVE, Axis.DP, stream="dp-comm"),
    OpSpec("separate-grads-all-reduce", Kind.COLLECTIVE, Axis.DP),
    OpSpec("layernorm-grads-all-reduce", Kind.COLLECTIVE),
    OpSpec("embedding-grads-all-reduce", Kind.COLLECTIVE, Axis.STAGES),
    OpSpec("optimizer-clip-main-grad", Kind.COLLECTIVE, Axis.DP_AND_STAGES),
    OpSpec("gc-pause", Kind.ANNOTATION),
    OpSpec("data-wait", Kind.ANNOTATION),
    # Zero-bubble schedules split the backward: only the first half is waited for by others.
    OpSpec("backward-input-compute", Kind.COMPUTE, Axis.NONE, Direction.BACKWARD, COMPUTE_STREAM),
    OpSpec("backward-weight-compute", Kind.COMPUTE, stream=COMPUTE_STREAM),
    # In a computation, and taken out of it: its stream stood still for another stream or rank.
    OpSpec("wait", Kind.ANNOTATION),
)

OP_NAMES: tuple[str, ...] = tuple(spec.name for spec in OP_SPECS)
OP_CODES: dict[str, int] = {name: code for code, name in enumerate(OP_NAMES)}

# Codes of a job's own types begin here, so that new built-in rows never move them.
FIRST_USER_CODE = 64
MAX_USER_TYPES = 64
NUM_CODES = FIRST_USER_CODE + MAX_USER_TYPES


@dataclass(frozen=True)
class OpTypes:
    """The operation types of one job: the built-in ones, and those that it registered."""

    user: tuple[OpSpec, ...] = ()

    @cached_property
    def by_code(self) -> dict[int, OpSpec]:
        """Every type under its code, ascending."""
        return dict(enumerate(OP_SPECS)) | dict(enumerate(self.user, FIRST_USER_CODE))

    @cached_property
    def codes(self) -> dict[str, int]:
        """Every type's code by its name."""
        return {spec.name: code for code, spec in self.by_code.items()}

    def name(self, code: int) -> str:
        """The type's name."""
        return self.by_code[int(code)].name

    def flags(self, holds: Callable[[OpSpec], bool]) -> NDArray[np.bool_]:
        """[NUM_CODES], whether a claim holds for the type of each code; False where there is none.

        Index it with a column of codes.
        """
        found = np.zeros(NUM_CODES, np.bool_)
        for code, spec in self.by_code.items():
            found[code] = holds(spec)
        return found

    @cached_property
    def is_receive(self) -> NDArray[np.bool_]:
        """[NUM_CODES], whether operations of a type wait for what another stage sends."""
        names = {"forward-recv", "backward-recv", *(spec.pairs_with for spec in self.user)}
        return self.flags(lambda spec: spec.kind is Kind.P2P and spec.name in names)


BUILT_IN = OpTypes()
