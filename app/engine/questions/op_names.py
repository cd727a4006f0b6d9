"""Names that stand for several operation types."""

from collections.abc import Callable

from app.trace.ops import Axis, Kind, OpSpec, OpTypes

# Each name stands for every op type that it holds for; the joint names of reports
# (forward-pp-comm, backward-pp-comm) are taken as well.
GROUPS: dict[str, Callable[[OpSpec], bool]] = {
    "compute": lambda spec: spec.kind is Kind.COMPUTE,
    "pp-comm": lambda spec: spec.kind is Kind.P2P,
    "dp-comm": lambda spec: spec.kind is Kind.COLLECTIVE and spec.axis is Axis.DP,
    "comm": lambda spec: spec.kind in (Kind.P2P, Kind.COLLECTIVE),
}


def named_codes(name: str, op_types: OpTypes) -> set[int]:
    """Codes of the op types that a name stands for; empty if it is not known."""
    if name in op_types.codes:
        return {op_types.codes[name]}
    if name in GROUPS:
        return {code for code, spec in op_types.by_code.items() if GROUPS[name](spec)}
    return {code for code, spec in op_types.by_code.items() if spec.group == name}
