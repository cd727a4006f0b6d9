"""Faults as they are typed: slow-worker:dp=3,stage=1,factor=1.6,from=20."""

import difflib
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, get_type_hints

from app.errors import InvalidRequest
from app.synth.faults.fault import Fault, When
from app.synth.faults.place import Workers
from app.synth.faults.registry import FAULTS
from app.synth.life import EVENTS, Event

# Shorter than the fields' own names.
_KEYS = {"dp_rank": "dp", "dp_size": "dp", "slowdown": "factor", "at_step": "at"}
_WHEN = {"from": "first_step", "for": "num_steps"}
_FORMS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "yes or no",
    str: "a name",
    str | None: "a name",
    Workers: "workers as DP/STAGE+DP/STAGE",
}
_BOOLEANS = {"yes": True, "no": False}
_EVERYBODY: dict[Any, Any] = {str | None: None, Workers: ()}
_ALL = "all"
# Fields that say how many times as long something takes.
_TIMES = {"slowdown", "forward", "backward"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key that may stand behind a fault's name; `default` is None where it has to."""

    key: str
    field: str
    type: Any
    default: str | None


def parse(text: str) -> Fault | Event:
    """The fault, or the event in a job's life.

    Raises:
        InvalidRequest: it is none; the message says what is wanted.
    """
    name, _, given = text.partition(":")
    kind = (FAULTS | EVENTS).get(name)
    if kind is None:
        raise InvalidRequest(f"--fault {text}: there is no fault {name!r}: {_nearest(name)}")
    try:
        return _made(kind, _given(given))
    except InvalidRequest as error:
        raise InvalidRequest(f"--fault {text}: {error}") from error


def settings(kind: type[Fault | Event]) -> list[Setting]:
    """The keys that a fault takes, those that have to be given first."""
    hints = get_type_hints(kind)
    found = [
        Setting(key(field.name), field.name, hints[field.name], _default(field))
        for field in fields(kind)
        if field.name != "when"
    ]
    return sorted(found, key=lambda setting: setting.default is not None)


def key(field: str) -> str:
    """What a field is called on the command line."""
    return _KEYS.get(field, field.removeprefix("is_").replace("_", "-"))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, (*FAULTS, *EVENTS), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}--list-faults tells all"


def _made(kind: type[Fault | Event], given: dict[str, str]) -> Fault | Event:
    known = {setting.key: setting for setting in settings(kind)}
    values: dict[str, Any] = {}
    if issubclass(kind, Fault):
        values["when"] = _when(given)
    if unknown := [key for key in given if key not in known]:
        also = list(_WHEN) if issubclass(kind, Fault) else []
        raise InvalidRequest(f"there is no {unknown[0]!r}, only {', '.join((*known, *also))}")
    for setting in known.values():
        if setting.key in given:
            values[setting.field] = _value(setting.key, setting.type, given[setting.key])
        elif setting.default is None:
            raise InvalidRequest(f"{setting.key} is missing: {_FORMS[setting.type]}")
    made = kind(**values)
    _refuse_usual(made)
    return made


def _refuse_usual(made: Fault | Event) -> None:
    times = [getattr(made, field.name) for field in fields(made) if field.name in _TIMES]
    if times and all(each == 1.0 for each in times):
        raise InvalidRequest("a fault of 1 times is none: give another number")


def _when(given: dict[str, str]) -> When:
    """The steps of `from` and `for`, which are taken out of what is given."""
    steps = {
        field: _value(key, int, given.pop(key)) for key, field in _WHEN.items() if key in given
    }
    return When(**steps)


def _given(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in _pairs(text):
        if key in given:
            raise InvalidRequest(f"{key} is given twice: give it once")
        given[key] = value
    return given


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        key, has_value, value = part.partition("=")
        yield key.strip(), value.strip() if has_value else "yes"


def _value(key: str, type_: Any, text: str) -> Any:
    if text == _ALL and type_ in _EVERYBODY:
        return _EVERYBODY[type_]
    try:
        if type_ is bool:
            return _BOOLEANS[text]
        if type_ == Workers:
            return tuple(_worker(each) for each in text.split("+"))
        return text if type_ in (str, str | None) else type_(text)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"{key} is {text!r}: want {_FORMS[type_]}") from error


def _worker(text: str) -> tuple[int, int]:
    dp_rank, stage = text.split("/")
    return int(dp_rank), int(stage)


def _default(field: "Field[Any]") -> str | None:
    if field.default is MISSING:
        return None
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    return _ALL if field.default in (None, ()) else str(field.default)
