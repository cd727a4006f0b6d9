"""Operation types. To add a built-in one, append its row to `OP_SPECS`.

A job may have types of its own, which its registration or meta file describes. `OpTypes` holds all
types of one job.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """The peers that an operation waits for before its transfer can begin."""

    NONE = "none"
    NEIGHBOUR = "neighbour"  # one op of the previous or next stage
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

    Operations of one `stream` run one after the other on a worker, in recorded order; "" is no
    stream. A job's own sending p2p type has the receiving type in `pairs_with`, which runs on the
    stage `towards` stages further on.
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
        """Whether the ideal duration is the mean (computations), or one without outliers."""
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
    # Part of a computation in which its stream waited for another stream or rank.
    OpSpec("wait", OpKind.ANNOTATION),
)

# The second half of a split backward, of the same micro-batch as the first.
BACKWARD_WEIGHT = "backward-weight-compute"

OP_NAMES: tuple[str, ...] = tuple(spec.name for spec in OP_SPECS)
OP_CODES: dict[str, int] = {name: code for code, name in enumerate(OP_NAMES)}

# The first code of a job's own types; room is left for new built-in types below it.
FIRST_USER_CODE = 64
MAX_USER_TYPES = 64
NUM_CODES = FIRST_USER_CODE + MAX_USER_TYPES


@dataclass(frozen=True)
class OpTypes:
    """The operation types of one job: the built-in ones, and those that it registered."""

    user: tuple[OpSpec, ...] = ()

    @cached_property
    def by_code(self) -> dict[int, OpSpec]:
        """All types by code, ascending."""
        return dict(enumerate(OP_SPECS)) | dict(enumerate(self.user, FIRST_USER_CODE))

    @cached_property
    def codes(self) -> dict[str, int]:
        """The code of every type, by name."""
        return {spec.name: code for code, spec in self.by_code.items()}

    def name(self, code: int) -> str:
        """The type's name."""
        return self.by_code[int(code)].name

    def flags(self, predicate: Callable[[OpSpec], bool]) -> NDArray[np.bool_]:
        """[NUM_CODES], whether the predicate is true of the type with this code; False without one.

        Index it with a column of codes.
        """
        flags = np.zeros(NUM_CODES, np.bool_)
        flags[list(self.by_code)] = [predicate(spec) for spec in self.by_code.values()]
        return flags

    @cached_property
    def is_receive(self) -> NDArray[np.bool_]:
        """[NUM_CODES], whether operations of this type receive data from another stage."""
        names = {"forward-recv", "backward-recv", *(spec.pairs_with for spec in self.user)}
        return self.flags(lambda spec: spec.kind is OpKind.P2P and spec.name in names)


BUILT_IN = OpTypes()


TYPE_FIELDS = ("name", "kind", "axis", "stream", "pairs_with", "towards")
KINDS_BY_NAME = {kind.value: kind for kind in OpKind if kind is not OpKind.ANNOTATION}
# One of several tensor-parallel peers records for all: an operation among them has no peers here.
AXES_BY_NAME = {"none": Axis.NONE, "tp": Axis.NONE, "pp": Axis.STAGES, "dp": Axis.DP, "ep": Axis.EP}
STAGES_TOWARDS = {"next": 1, "previous": -1}
MAX_TYPE_NAME = 64
# Names that a job's own type cannot have: of built-in types and their groups; of sets of types in
# what-if questions; and "waiting", which is the time of no type in results.
_NAMES_OF_SETS = frozenset({"compute", "pp-comm", "dp-comm", "comm", "waiting"})
TAKEN_NAMES = _NAMES_OF_SETS.union(*((spec.name, spec.group) for spec in OP_SPECS))

T = TypeVar("T")

_TYPE_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{MAX_TYPE_NAME - 1}}}")


def parse_op_types(described: Sequence[object], *, taken: Collection[str] = TAKEN_NAMES) -> OpTypes:
    """The built-in types and the described ones; none of these may have one of the `taken` names.

    Raises:
        InvalidRequest: a description is wrong; the message names the type and the field.
    """
    if not described:
        return BUILT_IN  # one object for all such jobs, since it caches its tables
    if len(described) > MAX_USER_TYPES:
        raise InvalidRequest(
            f"op_types: {len(described)} are too many: a job has {MAX_USER_TYPES} of its own"
        )
    types = OpTypes(tuple(_spec(position, fields) for position, fields in enumerate(described)))
    known = set(taken)
    for spec in types.user:
        if spec.name in known:
            raise InvalidRequest(f"op_types: {spec.name} is known already: choose another name")
        known.add(spec.name)
    p2p_types = {spec.name: spec for spec in types.user if spec.kind is OpKind.P2P}
    for spec in p2p_types.values():
        _check_pair(spec, p2p_types)
    return types


def parse_stored_op_types(described: Sequence[object]) -> OpTypes:
    """The types of descriptions that were accepted earlier, as `parse_op_types` reads them.

    They may have the name of a built-in type that was added since.
    """
    return parse_op_types(described, taken=())


def describe_op_types(types: OpTypes) -> list[dict[str, str]]:
    """The job's own types, as `parse_op_types` takes them."""
    axes = {axis: name for name, axis in AXES_BY_NAME.items() if name != "tp"}
    axes[Axis.NEIGHBOUR] = "pp"
    towards = {steps: name for name, steps in STAGES_TOWARDS.items()}
    descriptions = []
    for spec in types.user:
        description = {"name": spec.name, "kind": spec.kind.value, "axis": axes[spec.axis]}
        description["stream"] = spec.stream
        if spec.pairs_with:
            description |= {"pairs_with": spec.pairs_with, "towards": towards[spec.towards]}
        descriptions.append(description)
    return descriptions


@dataclass(frozen=True, slots=True)
class _Description:
    """The fields of one described type, and its place in the request for messages."""

    where: str
    fields: Mapping[str, object]

    def name(self, field: str) -> str:
        """The type's or stream's name in a field."""
        value = self.fields.get(field)
        if not isinstance(value, str) or not _TYPE_NAME.fullmatch(value):
            raise InvalidRequest(
                f"{self.where}: {field} {self._shown(field)}: give lower-case letters, digits and "
                f"hyphens, at most {MAX_TYPE_NAME}"
            )
        return value

    def one_of(self, field: str, known: Mapping[str, T]) -> T:
        """The member of `known` that a field names."""
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
    spec = OpSpec(name, OpKind.P2P, Axis.NEIGHBOUR, stream=stream)
    if "pairs_with" in fields:
        receiver = described.name("pairs_with")
        towards = described.one_of("towards", STAGES_TOWARDS)
        return replace(spec, pairs_with=receiver, towards=towards)
    if "towards" in fields:
        raise InvalidRequest(
            f"{where}: only the type that sends has towards: name the receiving one in "
            "pairs_with, or leave it out"
        )
    return spec


def _check_pair(spec: OpSpec, p2p_types: Mapping[str, OpSpec]) -> None:
    """Check that a sending type names a receiving one, and that a receiving one has one sender."""
    if spec.pairs_with:
        receiver = p2p_types.get(spec.pairs_with)
        if receiver is None or receiver.pairs_with:
            raise InvalidRequest(
                f"op_types: {spec.name} pairs with {spec.pairs_with}, which is no p2p type "
                "without a pairs_with of its own: describe the type that receives"
            )
        return
    num_senders = sum(other.pairs_with == spec.name for other in p2p_types.values())
    if num_senders != 1:
        raise InvalidRequest(
            f"op_types: {spec.name} is received from {num_senders} types: "
            f"let one p2p type name it in pairs_with"
        )
