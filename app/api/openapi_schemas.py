"""OpenAPI schemas of arrivals: the block of a result, and the answer of their route."""

from typing import Any


def arrivals_schema() -> dict[str, Any]:
    """Schema of the block `arrivals` of a result."""
    number = {"type": ["number", "null"]}
    integer = {"type": "integer"}
    unknown_integer = {"type": ["integer", "null"]}
    text = {"type": ["string", "null"]}

    def by_rank(item: dict[str, Any], description: str = "") -> dict[str, Any]:
        made: dict[str, Any] = {"type": "array", "items": item}
        return made | ({"description": description} if description else {})

    waits = {"waited_for_s": number, "waited_s": number, "late_share": number}
    place = {"rank": integer, "local_rank": unknown_integer, "host": text}
    group = {
        "name": {"type": "string"},
        "axis": {"enum": ["dp", "tp", "cp", "ep", "pp", ""]},
        "ranks": {**by_rank(integer), "description": "The first 64."},
        "num_ranks": integer,
        "num_occurrences": integer,
        "transfer_s": {**number, "description": "Median of an occurrence, once all are there."},
        "waited_s": {**number, "description": "Mean seconds a step that a member waits."},
        "bandwidth_bytes_s": number,
        "members": {
            **_objects({**place, **waits}),
            "description": "Most waited for first; at most 16 but where the group was asked for.",
        },
    }
    culprit = {
        **{"rank": integer, "dp_rank": unknown_integer, "stage": unknown_integer},
        **{"host": text, "local_rank": unknown_integer},
        **{"group": {"type": "string"}, "axis": group["axis"]},
        "kind": {"enum": ["compute", "host", "data-wait", "gc", "unknown"]},
        **{"waited_for_s": number, "late_share": number, "own_delay_s": number},
        "share": {**number, "description": "Of the step."},
        "steps_late": {**number, "description": "Share of the steps."},
    }
    return {
        "type": ["object", "null"],
        "description": "Whom the others waited for at collectives (docs/arrivals.md); arrays by "
        "rank are parallel. Null where no collective was recorded by every member of its group.",
        "properties": {
            "num_occurrences": integer,
            "num_ranks": {**integer, "description": "That recorded a collective."},
            "waiting_share": {
                **number,
                "description": "Share of GPU time that ranks spent waiting for later ones.",
            },
            "largest_share": {
                **number,
                "description": "Share of the step that the others waited for one rank, at most.",
            },
            "rank": by_rank(integer, "Global, of the 256 that were waited for most; ascending."),
            "dp_rank": by_rank(unknown_integer),
            "stage": by_rank(unknown_integer),
            "host": by_rank(text),
            "local_rank": by_rank(unknown_integer, "Number of the GPU on its host."),
            "waited_for_s": by_rank(number, "Mean seconds a step that the others waited for it."),
            "waited_s": by_rank(number, "Mean seconds a step that it waited for later ones."),
            "late_share": by_rank(number, "Share of its occurrences in which it was late."),
            "own_delay_s": by_rank(
                number, "Mean seconds a step of delay that is its own, and no wait elsewhere."
            ),
            "groups": {**_objects(group), "description": "At most 50, most waiting first."},
            "culprits": _objects(culprit),
            "per_step": {
                "type": "object",
                "description": "Only if asked for.",
                "properties": {
                    "waited_for_s": {
                        "type": "array",
                        "description": "Seconds by step and rank.",
                        "items": by_rank(number),
                    }
                },
            },
        },
    }


def window_arrivals_schema() -> dict[str, Any]:
    """Schema of the answer of GET .../windows/{window}/arrivals."""
    number = {"type": ["number", "null"]}
    properties = {
        "window": {"type": "string"},
        "steps": {"type": "array", "items": {"type": "integer"}},
        "arrivals": {
            **arrivals_schema(),
            "description": "As in the window's result, with `per_step`; with `group`, of the "
            "members of that group alone.",
        },
        "reason": {"type": ["string", "null"], "description": "Why there are none."},
        "unexplained_share": number,
        "coverage": number,
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _objects(properties: dict[str, Any]) -> dict[str, Any]:
    items = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "array", "items": items}
