"""Every address that a page may ask, made from the API's own description."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any
from urllib.parse import quote, urlencode

from app.errors import InvalidRequest

# An endless stream, a whole file that a reader asks for to keep, and one row of a list.
LEFT_OUT = ("stream_events", "get_window_timeline", "get_saved_question")
# What the fleet's page asks besides.
FURTHER = {
    "get_fleet": (
        "limit=200",
        "q=node-1",
        "cause=slow-worker",
        "order=since",
        "order=name&dir=desc",
    )
}
_API = "/api/v1/"

Known = Mapping[str, Sequence[str]]


def addresses(document: Mapping[str, Any], known: Known) -> dict[str, list[str]]:
    """Addresses by the operation's name, one for each choice that its path has.

    `known` has values of parameters by name; of others every value that the description lists is
    taken, or its example. Parameters of the query are given only where they are required.

    Raises:
        InvalidRequest: of a parameter that has to be given, no value is known.
    """
    found: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        asked = operations.get("get")
        if asked and path.startswith(_API) and asked["operationId"] not in LEFT_OUT:
            name = asked["operationId"]
            further = [f"{path}?{query}" for query in FURTHER.get(name, ())]
            found[name] = [*_of(path, asked, known), *further]
    return found


def _of(path: str, asked: Mapping[str, Any], known: Known) -> Iterator[str]:
    needed = [each for each in asked.get("parameters", ()) if each.get("required")]
    choices = [_values(path, each, known) for each in needed]
    for chosen in product(*choices):
        address, query = path, {}
        for parameter, value in zip(needed, chosen, strict=True):
            if parameter["in"] == "path":
                address = address.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
            else:
                query[parameter["name"]] = value
        yield f"{address}?{urlencode(query)}" if query else address


def _values(path: str, parameter: Mapping[str, Any], known: Known) -> Sequence[str]:
    schema = parameter["schema"]
    listed: Sequence[str] = known.get(parameter["name"]) or schema.get("enum") or ()
    examples: Sequence[str] = listed or schema.get("examples") or ()
    if not examples:
        raise InvalidRequest(f"{path}: no value is known of {parameter['name']!r}")
    return listed or [str(examples[0])]
