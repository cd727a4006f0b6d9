"""Valid bodies, and all that they may hold, from the schemas of an OpenAPI document."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.harness.fuzz.repeated_items import Path

Schema = Mapping[str, Any]
_TEXTS = ("a", "1-0", "latest", "a1", "1")
_MOMENT = "2099-11-21T22:00:00Z"
_KEY = "team"


class BodySchema:
    """The schema of one body; `example` is the documented one.

    Of alternatives, as the changes of an edit, `variant` says which one is taken.
    """

    def __init__(
        self, schema: Schema, document: Mapping[str, Any], example: Any = None, *, variant: int = 0
    ) -> None:
        self._components = document["components"]["schemas"]
        self._variant = variant
        self._schema = self._resolved(schema)
        given = (self._schema.get("examples") or [None])[0] if example is None else example
        self.full = self._built(self._schema, needed_only=False)
        self.valid = self._built(self._schema, needed_only=True) if given is None else given

    def fields(self) -> Iterator[tuple[Path, Schema]]:
        """Paths and schemas of all fields and items at any depth."""
        yield from self._fields(self._schema, self.full, ())

    def with_field(self, path: Path, value: Any) -> Any:
        """The valid body with a value in this field; what lies around it is added, if missing."""
        body, full = copy.deepcopy(self.valid), self.full
        part = body
        for at, key in enumerate(path):
            full = full[key]
            if at == len(path) - 1:
                if isinstance(part, list) and not part:
                    part.append(None)
                part[key] = value
            elif isinstance(part, dict) and part.get(key) is None:
                part[key] = copy.deepcopy(full)
            elif isinstance(part, list) and not part:
                part.append(copy.deepcopy(full))
            part = part[key]
        return body

    def _resolved(self, schema: Schema) -> Schema:
        while True:
            if "$ref" in schema:
                found = self._components[schema["$ref"].rpartition("/")[2]]
                schema = {**found, **{k: v for k, v in schema.items() if k != "$ref"}}
                continue
            alternatives = [
                each
                for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
                if each.get("type") != "null"
            ]
            if not alternatives:
                return schema
            chosen = self._resolved(alternatives[self._variant % len(alternatives)])
            outer = {k: v for k, v in schema.items() if k not in ("anyOf", "oneOf")}
            own = {k: v for k, v in chosen.get("properties", {}).items() if v["type"] == "null"}
            if "properties" in outer:  # which of its own fields a body has
                kept = {k: v for k, v in outer["properties"].items() if k not in own}
                needed = [*outer.get("required", ()), *chosen.get("required", ())]
                return {**outer, "properties": kept, "required": needed}
            schema = {**chosen, **outer}

    def _built(self, schema: Schema, *, needed_only: bool) -> Any:
        schema = self._resolved(schema)
        match _kind(schema):
            case "object":
                needed = schema.get("required", ())
                made = {
                    name: self._built(each, needed_only=needed_only)
                    for name, each in schema.get("properties", {}).items()
                    if name in needed or not needed_only
                }
                for each in schema.get("patternProperties", {}).values():
                    made |= {_KEY: self._built(each, needed_only=needed_only)}
                return made
            case "array":
                items = schema.get("prefixItems") or [schema.get("items", {})]
                made_items = [self._built(each, needed_only=needed_only) for each in items]
                return made_items * max(1, schema.get("minItems", 1) // len(made_items))
            case _:
                return _value(schema)

    def _fields(self, schema: Schema, part: Any, path: Path) -> Iterator[tuple[Path, Schema]]:
        schema = self._resolved(schema)
        if path:
            yield path, schema
        if isinstance(part, dict):
            free: Schema = next(iter(schema.get("patternProperties", {}).values()), {})
            for name, value in part.items():
                inner = schema.get("properties", {}).get(name, free)
                yield from self._fields(inner, value, (*path, name))
        elif isinstance(part, list) and part:
            inner = (schema.get("prefixItems") or [schema.get("items", {})])[0]
            yield from self._fields(inner, part[0], (*path, 0))


def num_variants(schema: Schema, document: Mapping[str, Any]) -> int:
    """The most alternatives that any part of a schema has beside null."""
    most = 1
    seen: set[str] = set()
    left: list[Any] = [schema]
    while left:
        each = left.pop()
        if isinstance(each, Mapping):
            name = each.get("$ref", "").rpartition("/")[2] if "$ref" in each else ""
            if name and name not in seen:
                seen.add(name)
                left.append(document["components"]["schemas"][name])
            for key in ("anyOf", "oneOf"):
                most = max(most, sum(one.get("type") != "null" for one in each.get(key, ())))
            left += each.values()
        elif isinstance(each, list):
            left += each
    return most


def _kind(schema: Schema) -> str:
    given = schema.get("type", "")
    kinds = [given] if isinstance(given, str) else [each for each in given if each != "null"]
    if "properties" in schema or "patternProperties" in schema:
        return "object"
    return str(kinds[0])


def _value(schema: Schema) -> Any:
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match _kind(schema):
        case "integer":
            return max(1, int(schema.get("minimum", 1)))
        case "number":
            return float(min(max(1.0, schema.get("minimum", 1.0)), schema.get("maximum", 1e9)))
        case "boolean":
            return True
        case _:
            return _text(schema)


def _text(schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return _MOMENT
    pattern = schema.get("pattern", "")
    found = next((each for each in _TEXTS if re.search(pattern, each)), "a")
    return found * -(-schema.get("minLength", 1) // len(found)) if found else found
