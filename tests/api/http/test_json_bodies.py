"""A JSON body of a caller: what it may have; a wrong one is freed by the thread that read it."""

import json
from typing import Annotated

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, FailFast

from app.api.http.bodies import JSON_TYPE, MAX_FIELDS, read_json, read_model
from app.errors import BadRequest


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int = 0


class Items(BaseModel):
    items: Annotated[list[Item], FailFast()]


def body_of(fields):
    return json.dumps({"items": [{f"k{number}": 1 for number in range(fields)}]}).encode()


def test_object_of_thousands_of_fields_is_refused_by_their_number():
    with pytest.raises(BadRequest, match="an object of the body has 1,001 fields"):
        read_json(body_of(1_001), JSON_TYPE)


def test_first_wrong_fields_are_named():
    with pytest.raises(RequestValidationError) as caught:
        read_model(Items, body_of(1_000), JSON_TYPE)
    found = caught.value.errors()
    assert [each["loc"] for each in found] == [
        ("body", "items", 0, f"k{number}") for number in range(MAX_FIELDS)
    ]


def _size(value):
    if isinstance(value, dict):
        value = list(value.values())
    return len(value) + sum(map(_size, value)) if isinstance(value, list | tuple) else 0
