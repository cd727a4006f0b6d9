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
        "ranks": {**by_rank(integer), "description": "The group's first 64 ranks."},
        "num_ranks": integer,
        "num_occurrences": integer,
        "transfer_s": {
            **number,
            "description": "Median transfer time of a collective, from the "
            "arrival of the last member, in seconds.",
        },
        "waited_s": {**number, "description": "Mean seconds per step that a member waits."},
        "bandwidth_bytes_s": number,
        "members": {
            **_objects({**place, **waits}),
            "description": "Members by `waited_for_s`, descending; at most 16 unless `group` "
            "was given.",
        },
    }
    culprit = {
        **{"rank": integer, "dp_rank": unknown_integer, "stage": unknown_integer},
        **{"host": text, "local_rank": unknown_integer},
        **{"group": {"type": "string"}, "axis": group["axis"]},
        "kind": {"enum": ["compute", "host", "data-wait", "gc", "unknown"]},
        **{"waited_for_s": number, "late_share": number, "own_delay_s": number},
        "share": {**number, "description": "Share of the step that others waited for this rank."},
        "steps_late": {**number, "description": "Share of the steps in which this rank was late."},
    }
    return {
        "type": ["object", "null"],
        "description": "Ranks that the others waited for at collectives (docs/arrivals.md). "
        "Arrays by rank are parallel. Null if no collective was recorded by all "
        "members of its group.",
        "properties": {
            "num_occurrences": integer,
            "num_ranks": {**integer, "description": "Number of ranks that recorded a collective."},
            "waiting_share": {
                **number,
                "description": "Share of GPU time that ranks waited for later ones.",
            },
            "largest_share": {
                **number,
                "description": "Largest share of the step that the others waited for a single "
                "rank.",
            },
            "rank": by_rank(
                integer, "Global ranks, ascending: the 256 ranks that the others waited for most."
            ),
            "dp_rank": by_rank(unknown_integer),
            "stage": by_rank(unknown_integer),
            "host": by_rank(text),
            "local_rank": by_rank(unknown_integer, "Index of the GPU on its host."),
            "waited_for_s": by_rank(
                number, "Mean seconds per step that the others waited for this rank."
            ),
            "waited_s": by_rank(
                number, "Mean seconds per step that this rank waited for later ones."
            ),
            "late_share": by_rank(number, "Share of this rank's collectives to which it was late."),
            "own_delay_s": by_rank(
                number,
                "Mean seconds per step of this rank's own delay, without its waits in "
                "other groups.",
            ),
            "groups": {
                **_objects(group),
                "description": "At most 50 groups, by waiting, descending.",
            },
            "culprits": _objects(culprit),
            "per_step": {
                "type": "object",
                "description": "Figures by step; only with `per_step=true`.",
                "properties": {
                    "waited_for_s": {
                        "type": "array",
                        "description": "Seconds as [step][rank].",
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
            "description": "As in the window's result, with `per_step`. With `group`: only the "
            "members of the group.",
        },
        "reason": {
            "type": ["string", "null"],
            "description": "Reason why `arrivals` is null; otherwise null.",
        },
        "unexplained_share": number,
        "coverage": number,
    }
    return {"type": "object", "required": list(properties), "properties": properties}


def _objects(properties: dict[str, Any]) -> dict[str, Any]:
    items = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "array", "items": items}
