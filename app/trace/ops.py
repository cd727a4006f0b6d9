"""Operation types: one row each. To add a built-in one, add its row to `OP_SPECS`.

A job may bring types of its own, which its registration or meta file describes; `OpTypes` is the
table of one job.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequest

COMPUTE_STREAM = "compute"


class OpKind(Enum):
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
    """How one operation type is replayed (docs/replay.md, sections 1, 4 and 6).

    Operations of one `stream` run one after the other on a worker, in recorded order; "" is none.
    Of a job's own p2p types, the sending one names in `pairs_with` the one that receives, on the
    stage `towards` steps further on.
    """

    name: str
    kind: OpKind
    axis: Axis = Axis.NONE
    direction: Direction = Direction.NONE
    stream: str = ""
    pairs_with: str = ""
    towards: int = 0

    @property
    def idealised_by_mean(self) -> bool:
        """Whether the ideal duration is the mean (computing); else outliers are cut."""
        return self.kind is OpKind.COMPUTE

    @property
    def group(self) -> str:
        """Name in results: its own, or one name for a direction's sends and receives."""
        if self.kind is OpKind.P2P and self.direction is not Direction.NONE:
            return f"{self.direction.value}-pp-comm"
        return self.name


# The position in this tuple is the op type's code in arrays and in stored windows:
# append at the end, never reorder.
OP_SPECS: tuple[OpSpec, ...] = (
    OpSpec("forward-compute", OpKind.COMPUTE, Axis.NONE, Direction.FORWARD, COMPUTE_STREAM),
    OpSpec("backward-compute", OpKind.COMPUTE, Axis.NONE, Direction.BACKWARD, COMPUTE_STREAM),
    OpSpec("optimizer", OpKind.COMPUTE),
    OpSpec("gc", OpKind.COMPUTE),
    OpSpec("forward-send", OpKind.P2P, Axis.NEIGHBOUR, Direction.FORWARD, "forward-send"),
    OpSpec("forward-recv", OpKind.P2P, Axis.NEIGHBOUR, Direction.FORWARD, "forward-recv"),
    OpSpec("backward-send", OpKind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD, "backward-send"),
    OpSpec("backward-recv", OpKind.P2P, Axis.NEIGHBOUR, Direction.BACKWARD, "backward-recv"),
    OpSpec("params-all-gather", OpKind.COLLECTIVE, Axis.DP, stream="dp-comm"),
    OpSpec("grads-reduce-scatter", OpKind.COLLECTIVE, Axis.DP, stream="dp-comm"),
    OpSpec("separate-grads-all-reduce", OpKind.COLLECTIVE, Axis.DP),
    OpSpec("layernorm-grads-all-reduce", OpKind.COLLECTIVE),
    OpSpec("embedding-grads-all-reduce", OpKind.COLLECTIVE, Axis.STAGES),
    OpSpec("optimizer-clip-main-grad", OpKind.COLLECTIVE, Axis.DP_AND_STAGES),
    OpSpec("gc-pause", OpKind.ANNOTATION),
    OpSpec("data-wait", OpKind.ANNOTATION),
    # Zero-bubble schedules split the backward: only the first half is waited for by others.
    OpSpec("backward-input-compute", OpKind.COMPUTE, Axis.NONE, Direction.BACKWARD, COMPUTE_STREAM),
    OpSpec("backward-weight-compute", OpKind.COMPUTE, stream=COMPUTE_STREAM),
    # In a computation, and taken out of it: its stream stood still for another stream or rank.
    OpSpec("wait", OpKind.ANNOTATION),
)

# The second half of a split backward, of the same micro-batch as the first.
BACKWARD_WEIGHT = "backward-weight-compute"

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
        return self.flags(lambda spec: spec.kind is OpKind.P2P and spec.name in names)


BUILT_IN = OpTypes()


TYPE_FIELDS = ("name", "kind", "axis", "stream", "pairs_with", "towards")
KINDS_BY_NAME = {kind.value: kind for kind in OpKind if kind is not OpKind.ANNOTATION}
# Tensor-parallel peers are recorded once, so one that meets only them meets nobody here.
AXES_BY_NAME = {"none": Axis.NONE, "tp": Axis.NONE, "pp": Axis.STAGES, "dp": Axis.DP, "ep": Axis.EP}
STAGES_TOWARDS = {"next": 1, "previous": -1}
MAX_TYPE_NAME = 64
# Results name a type by its own name, or by its group's, and what no type took "waiting";
# questions have names for several types.
_NAMES_OF_SEVERAL = ("compute", "pp-comm", "dp-comm", "comm", "waiting")
TAKEN_NAMES = frozenset(name for spec in OP_SPECS for name in (spec.name, spec.group)) | {
    *_NAMES_OF_SEVERAL
}

T = TypeVar("T")

_TYPE_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{MAX_TYPE_NAME - 1}}}")


def parse_op_types(described: Sequence[object], *, taken: Collection[str] = TAKEN_NAMES) -> OpTypes:
    """The built-in types and the described ones, which must have none of the `taken` names.

    Raises:
        InvalidRequest: a description is wrong; the message names the type and the field.
    """
    if not described:
        return BUILT_IN  # one object for all such jobs: it keeps its tables
    if len(described) > MAX_USER_TYPES:
        raise InvalidRequest(
            f"op_types: {len(described)} are too many: a job has {MAX_USER_TYPES} of its own"
        )
    types = OpTypes(tuple(_spec(position, fields) for position, fields in enumerate(described)))
    _check_names(types, taken)
    for spec in types.user:
        _check_pair(spec, types)
    return types


def parse_stored_op_types(described: Sequence[object]) -> OpTypes:
    """The same for types that were accepted earlier.

    A built-in type of the same name that was added since does not get in their way.
    """
    return parse_op_types(described, taken=())


def describe_op_types(types: OpTypes) -> list[dict[str, str]]:
    """The job's own types, as `parse_op_types` takes them."""
    axes = {axis: name for name, axis in AXES_BY_NAME.items() if name != "tp"}
    axes[Axis.NEIGHBOUR] = "pp"
    towards = {steps: name for name, steps in STAGES_TOWARDS.items()}
    found = []
    for spec in types.user:
        each = {"name": spec.name, "kind": spec.kind.value, "axis": axes[spec.axis]}
        each["stream"] = spec.stream
        if spec.pairs_with:
            each |= {"pairs_with": spec.pairs_with, "towards": towards[spec.towards]}
        found.append(each)
    return found


@dataclass(frozen=True, slots=True)
class _Description:
    """The fields of one type as they were given, and where, for messages."""

    where: str
    fields: Mapping[str, object]

    def name(self, field: str) -> str:
        """The name in a field."""
        value = self.fields.get(field)
        if not isinstance(value, str) or not _TYPE_NAME.fullmatch(value):
            raise InvalidRequest(
                f"{self.where}: {field} {self._shown(field)}: give lower-case letters, digits and "
                f"hyphens, at most {MAX_TYPE_NAME}"
            )
        return value

    def one_of(self, field: str, known: Mapping[str, T]) -> T:
        """What the name in a field stands for."""
        value = self.fields.get(field)
        if not isinstance(value, str) or value not in known:
            raise InvalidRequest(
                f"{self.where}: {field} {self._shown(field)}: use one of {', '.join(known)}"
            )
        return known[value]

    def _shown(self, field: str) -> str:
        if field not in self.fields:
            return "is missing"
        return f"is {str(self.fields[field])[:MAX_TYPE_NAME]!r}"


def _spec(position: int, fields: object) -> OpSpec:
    where = f"op_types[{position}]"
    if not isinstance(fields, Mapping):
        raise InvalidRequest(f"{where} is no set of fields: give {', '.join(TYPE_FIELDS)}")
    if unknown := [str(field)[:MAX_TYPE_NAME] for field in fields if field not in TYPE_FIELDS]:
        raise InvalidRequest(f"{where} has {unknown[0]!r}: the fields are {', '.join(TYPE_FIELDS)}")
    name = _Description(where, fields).name("name")
    where = f"{where} ({name})"
    described = _Description(where, fields)
    kind = described.one_of("kind", KINDS_BY_NAME)
    usual_stream = COMPUTE_STREAM if kind is OpKind.COMPUTE else name
    stream = described.name("stream") if "stream" in fields else usual_stream
    if kind is OpKind.P2P:
        return _p2p(described, name, stream)
    for field in ("pairs_with", "towards"):
        if field in fields:
            raise InvalidRequest(f"{where}: {field} is for kind p2p only: leave it out")
    if kind is OpKind.COMPUTE and fields.get("axis", "none") != "none":
        raise InvalidRequest(f"{where}: compute operations have no peers: set axis to none")
    axis = Axis.NONE if kind is OpKind.COMPUTE else described.one_of("axis", AXES_BY_NAME)
    return OpSpec(name, kind, axis, stream=stream)


def _p2p(described: _Description, name: str, stream: str) -> OpSpec:
    where, fields = described.where, described.fields
    if fields.get("axis", "pp") != "pp":
        raise InvalidRequest(f"{where}: kind p2p is between stages: set axis to pp")
    if stream == COMPUTE_STREAM:
        raise InvalidRequest(f"{where}: kind p2p has a stream of its own: name another stream")
    if "pairs_with" not in fields:
        if "towards" in fields:
            raise InvalidRequest(
                f"{where}: only the type that sends has towards: name the receiving one in "
                "pairs_with, or leave it out"
            )
        return OpSpec(name, OpKind.P2P, Axis.NEIGHBOUR, stream=stream)
    receiver = described.name("pairs_with")
    towards = described.one_of("towards", STAGES_TOWARDS)
    return OpSpec(
        name, OpKind.P2P, Axis.NEIGHBOUR, stream=stream, pairs_with=receiver, towards=towards
    )


def _check_names(types: OpTypes, taken: Collection[str]) -> None:
    seen = set(taken)
    for spec in types.user:
        if spec.name in seen:
            raise InvalidRequest(f"op_types: {spec.name} is known already: choose another name")
        seen.add(spec.name)


def _check_pair(spec: OpSpec, types: OpTypes) -> None:
    if spec.kind is not OpKind.P2P:
        return
    receivers = {each.name: each for each in types.user if each.kind is OpKind.P2P}
    senders = [each.name for each in types.user if each.pairs_with == spec.name]
    if spec.pairs_with:
        there = receivers.get(spec.pairs_with)
        if there is None or there.pairs_with or there is spec:
            raise InvalidRequest(
                f"op_types: {spec.name} pairs with {spec.pairs_with}, which is no p2p type "
                "without a pairs_with of its own: describe the type that receives"
            )
    elif len(senders) != 1:
        raise InvalidRequest(
            f"op_types: {spec.name} is received from {len(senders)} types: "
            f"let one p2p type name it in pairs_with"
        )
