"""Operation types that a job brings along, as a registration or a meta file describes them."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from app.errors import InvalidRequest
from app.trace.ops import (
    BUILT_IN,
    COMPUTE_STREAM,
    MAX_USER_TYPES,
    OP_SPECS,
    Axis,
    Kind,
    OpSpec,
    OpTypes,
)

FIELDS = ("name", "kind", "axis", "stream", "pairs_with", "towards")
KINDS = {kind.value: kind for kind in Kind if kind is not Kind.ANNOTATION}
# Tensor-parallel peers are recorded once, so one that meets only them meets nobody here.
AXES = {"none": Axis.NONE, "tp": Axis.NONE, "pp": Axis.STAGES, "dp": Axis.DP, "ep": Axis.EP}
TOWARDS = {"next": 1, "previous": -1}
MAX_NAME = 64
# Results name a type by its own name, or by its group's, and what no type took "waiting";
# questions have names for several types.
_SEVERAL = ("compute", "pp-comm", "dp-comm", "comm", "waiting")
TAKEN = frozenset(name for spec in OP_SPECS for name in (spec.name, spec.group)) | {*_SEVERAL}

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def parse(described: Sequence[Mapping[str, Any]], *, taken: Collection[str] = TAKEN) -> OpTypes:
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
    types = OpTypes(tuple(_spec(position, each) for position, each in enumerate(described)))
    _check_names(types, taken)
    for spec in types.user:
        _check_pair(spec, types)
    return types


def parse_stored(described: Sequence[Mapping[str, Any]]) -> OpTypes:
    """The same for types that were taken when they came.

    A built-in type of the same name that was added since does not get in their way.
    """
    return parse(described, taken=())


def describe(types: OpTypes) -> list[dict[str, str]]:
    """The job's own types, as `parse` takes them."""
    axes = {axis: name for name, axis in AXES.items() if name != "tp"}
    axes[Axis.NEIGHBOUR] = "pp"
    towards = {steps: name for name, steps in TOWARDS.items()}
    found = []
    for spec in types.user:
        each = {"name": spec.name, "kind": spec.kind.value, "axis": axes[spec.axis]}
        each["stream"] = spec.stream
        if spec.pairs_with:
            each |= {"pairs_with": spec.pairs_with, "towards": towards[spec.towards]}
        found.append(each)
    return found


def _spec(position: int, described: Mapping[str, Any]) -> OpSpec:
    where = f"op_types[{position}]"
    if not isinstance(described, Mapping):
        raise InvalidRequest(f"{where} is no set of fields: give {', '.join(FIELDS)}")
    if unknown := [str(field)[:MAX_NAME] for field in described if field not in FIELDS]:
        raise InvalidRequest(f"{where} has {unknown[0]!r}: the fields are {', '.join(FIELDS)}")
    name = _text(where, described, "name")
    where = f"op_types[{position}] ({name})"
    kind = _one_of(where, described, "kind", KINDS)
    usual_stream = COMPUTE_STREAM if kind is Kind.COMPUTE else name
    stream = _text(where, described, "stream") if "stream" in described else usual_stream
    if kind is Kind.P2P:
        return _p2p(where, described, name, stream)
    for field in ("pairs_with", "towards"):
        if field in described:
            raise InvalidRequest(f"{where}: {field} is for kind p2p only: leave it out")
    if kind is Kind.COMPUTE and described.get("axis", "none") != "none":
        raise InvalidRequest(f"{where}: kind compute meets nobody: set axis to none")
    axis = Axis.NONE if kind is Kind.COMPUTE else _one_of(where, described, "axis", AXES)
    return OpSpec(name, kind, axis, stream=stream)


def _p2p(where: str, described: Mapping[str, Any], name: str, stream: str) -> OpSpec:
    if described.get("axis", "pp") != "pp":
        raise InvalidRequest(f"{where}: kind p2p is between stages: set axis to pp")
    if stream == COMPUTE_STREAM:
        raise InvalidRequest(f"{where}: kind p2p has a stream of its own: name another stream")
    if "pairs_with" not in described:
        if "towards" in described:
            raise InvalidRequest(
                f"{where}: only the type that sends has towards: name the receiving one in "
                "pairs_with, or leave it out"
            )
        return OpSpec(name, Kind.P2P, Axis.NEIGHBOUR, stream=stream)
    receiver = _text(where, described, "pairs_with")
    towards = _one_of(where, described, "towards", TOWARDS)
    return OpSpec(
        name, Kind.P2P, Axis.NEIGHBOUR, stream=stream, pairs_with=receiver, towards=towards
    )


def _check_names(types: OpTypes, taken: Collection[str]) -> None:
    seen = set(taken)
    for spec in types.user:
        if spec.name in seen:
            raise InvalidRequest(f"op_types: {spec.name} is known already: choose another name")
        seen.add(spec.name)


def _check_pair(spec: OpSpec, types: OpTypes) -> None:
    if spec.kind is not Kind.P2P:
        return
    receivers = {each.name: each for each in types.user if each.kind is Kind.P2P}
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


def _text(where: str, described: Mapping[str, Any], field: str) -> str:
    value = described.get(field)
    if not isinstance(value, str) or len(value) > MAX_NAME or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{where}: {field} {_is(described, field)}: give lower-case letters, digits and "
            f"hyphens, at most {MAX_NAME}"
        )
    return value


def _one_of(where: str, described: Mapping[str, Any], field: str, known: Mapping[str, T]) -> T:
    value = described.get(field)
    if not isinstance(value, str) or value not in known:
        raise InvalidRequest(
            f"{where}: {field} {_is(described, field)}: use one of {', '.join(known)}"
        )
    return known[value]


def _is(described: Mapping[str, Any], field: str) -> str:
    if field not in described:
        return "is missing"
    return f"is {str(described[field])[:MAX_NAME]!r}"
