"""Bodies of every operation: hostile values in each field at any depth, and valid items n times."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.ingest.wire.codec import BINARY_TYPE
from app.trace.readers.otlp.spans import ANALYSE, HOST_TIMES_KEY, JOB_KEY
from tests.harness.batches import body_of
from tests.harness.fuzz.input_families import JSON, YAML, Family
from tests.harness.fuzz.repeated_items import Path, Repeat, repeats_of, shown
from tests.harness.fuzz.repeated_records import span_families
from tests.harness.fuzz.schema_samples import BodySchema, Schema, num_variants
from tests.harness.samples.otlp import as_json, resource, spans

AnyFamily = Callable[[int], str | bytes]
JSON_TYPE, PROTOBUF_TYPE, YAML_TYPE = (
    "application/json",
    "application/x-protobuf",
    "application/yaml",
)
_JOB = "llm-70b"
_BYTES_OF_ROW = 8  # in the binary format, where rows that are alike are packed
_MARK = "@@here@@"
_FEW_ITEMS = 16  # so few cost nothing, whatever is done with them
_OPTED_IN: Mapping[str, Any] = {JOB_KEY: _JOB, HOST_TIMES_KEY: ANALYSE}


@dataclass(frozen=True, slots=True)
class HostileBody:
    """A family of bodies; `most` where it counts items, of which there may be so many."""

    name: str
    media: str
    family: AnyFamily
    query: Mapping[str, str] | None = None
    most: int | None = None


def bodies_of(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[HostileBody]:
    """All bodies of an operation of an OpenAPI document, with every family."""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        for family, text in (YAML if media == YAML_TYPE else JSON).items():
            yield HostileBody(f"{media}: {family}", media, text)
        if operation["operationId"] == "push_spans":
            yield from _spans(media)
        elif media == BINARY_TYPE:
            yield HostileBody(
                f"{media}: rows", media, lambda size: body_of(max(1, size // _BYTES_OF_ROW))
            )
        elif media == JSON_TYPE:
            yield from _of_schema(media, content, document)


def _of_schema(
    media: str, content: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[HostileBody]:
    seen: set[str] = set()
    for variant in range(num_variants(content["schema"], document)):
        body = BodySchema(content["schema"], document, content.get("example"), variant=variant)
        fields = dict(body.fields())
        for each in (*_in_fields(media, body, fields), *_repeated(media, body, fields)):
            if each.name not in seen:
                seen.add(each.name)
                yield each


def _in_fields(
    media: str, body: BodySchema, fields: Mapping[Path, Schema]
) -> Iterator[HostileBody]:
    """Each hostile value in each field of an otherwise valid body."""
    for path in fields:
        text = json.dumps(body.with_field(path, _MARK))
        before, _, after = text.partition(json.dumps(_MARK))
        for family, value in JSON.items():
            placed = partial(_placed, before, value, after)
            yield HostileBody(f"{media} {shown(path)}: {family}", media, placed)


def _placed(before: str, value: Family, after: str, size: int) -> str:
    return before + value(size) + after


def _repeated(media: str, body: BodySchema, fields: Mapping[Path, Schema]) -> Iterator[HostileBody]:
    """Each list of a valid body with n valid items, as many as fit and as many as are allowed."""
    for kind, sample in (("", body.valid), ("full ", _whole(body, fields))):
        for each in repeats_of(sample):
            name = f"{media} {kind}{each.name}"
            yield HostileBody(name, media, each.family())
            if most := _most_items(each, fields):
                yield HostileBody(f"{name}, up to the limit", media, each.of_items, most=most)


def _whole(body: BodySchema, fields: Mapping[Path, Schema]) -> Any:
    """The valid body with all that it may hold beside."""
    made = body.valid
    for path in fields:
        if len(path) == 1 and path[0] not in made:
            made = {**made, path[0]: body.full[path[0]]}
    return made


def _most_items(each: Repeat, fields: Mapping[Path, Schema]) -> int | None:
    """How many items the schema allows beside those that are there; None for any number."""
    path = tuple(0 if isinstance(key, int) else key for key in each.path)
    schema = fields.get(path, {})
    most = schema.get("maxItems", schema.get("maxProperties"))
    return None if most is None or most < _FEW_ITEMS else most - 1 - each.num_items


def _spans(media: str) -> Iterator[HostileBody]:
    """Spans of a job that has opted in."""
    if media == PROTOBUF_TYPE:
        for name, family in span_families(is_framed=False, **_OPTED_IN):
            yield HostileBody(f"{media} {name}", media, family)
        return
    request = json.loads(as_json(resource(0, **_OPTED_IN), spans(0, range(5, 6))))
    for each in repeats_of(request):
        yield HostileBody(f"{media} {each.name}", media, each.family())
