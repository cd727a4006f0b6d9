"""Faults of `paceline simulate`: the --fault option parsed, checked against the job, and listed.

A fault reads slow-worker:dp=3,stage=1,factor=1.6,from=20.
"""

import difflib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, get_type_hints

from app.errors import InvalidRequest
from app.synth.faults.fault import Fault, FaultSteps, WorkerPlaces
from app.synth.faults.registry import FAULTS
from app.synth.job import SimulatedJob
from app.synth.restarts import EVENTS, JobEvent, SimulatedRun, unchecked_runs

# Keys that are shorter than the field names.
_KEYS = {"dp_rank": "dp", "dp_size": "dp", "slowdown": "factor", "at_step": "at"}
_WHEN = {"from": "first_step", "for": "num_steps"}
_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "yes or no",
    str: "a name",
    str | None: "a name",
    WorkerPlaces: "workers as DP/STAGE+DP/STAGE",
}
_BOOLEANS = {"yes": True, "no": False}
_MEANING_OF_ALL: dict[Any, Any] = {str | None: None, WorkerPlaces: ()}
_ALL = "all"
# Fields that are slowdown factors.
_TIMES = {"slowdown", "forward", "backward"}


@dataclass(frozen=True, slots=True)
class FaultSetting:
    """One key of a fault; `default` is None if it is required."""

    key: str
    field: str
    type: Any
    default: str | None


def parse_fault(text: str) -> Fault | JobEvent:
    """Parse one --fault: a fault, or an event such as a restart."""
    name, _, given = text.partition(":")
    kind = (FAULTS | EVENTS).get(name)
    if kind is None:
        raise InvalidRequest(f"--fault {text}: there is no fault {name!r}: {_nearest(name)}")
    try:
        return _fault_of(kind, _given_values(given))
    except InvalidRequest as error:
        raise InvalidRequest(f"--fault {text}: {error}") from error


def fault_settings(kind: type[Fault | JobEvent]) -> list[FaultSetting]:
    """The keys of a fault, required ones first."""
    hints = get_type_hints(kind)
    found = [
        FaultSetting(option_key(field.name), field.name, hints[field.name], _default(field))
        for field in fields(kind)
        if field.name != "when"
    ]
    return sorted(found, key=lambda setting: setting.default is not None)


# Values that show what a required key takes; they fit a job of the default size.
_EXAMPLE_VALUES = {
    "dp": "3",
    "stage": "1",
    "factor": "1.6",
    "host": "host-001",
    "share": "0.25",
    "rate": "0.1",
    "pause-s": "0.3",
    "delay-s": "0.2",
    "stall-s": "0.5",
    "stop-s": "5",
    "every-steps": "4",
    "workers": "1/0+2/1",
    "at": "8",
    "lost-steps": "2",
}
_EXAMPLE_OF_TYPE = {int: "2", float: "1.5", bool: "yes"}


def fault_example(kind: type[Fault | JobEvent]) -> str:
    """An option with the required keys of a fault: --fault slow-host:host=host-001,factor=1.6."""
    keys = ",".join(
        f"{each.key}={_EXAMPLE_VALUES.get(each.key) or _EXAMPLE_OF_TYPE.get(each.type, 'all')}"
        for each in fault_settings(kind)
        if each.default is None
    )
    return f"--fault {kind.name}" + f":{keys}" * bool(keys)


def option_key(field: str) -> str:
    """A field's name on the command line."""
    return _KEYS.get(field, field.removeprefix("is_").replace("_", "-"))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, (*FAULTS, *EVENTS), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}--list-faults shows all"


def _fault_of(kind: type[Fault | JobEvent], given: dict[str, str]) -> Fault | JobEvent:
    known = {setting.key: setting for setting in fault_settings(kind)}
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
            what = _TYPE_NAMES[setting.type]
            raise InvalidRequest(f"{setting.key} is missing, {what}, as in {fault_example(kind)}")
    fault = kind(**values)
    _refuse_no_change(fault)
    return fault


def _refuse_no_change(fault: Fault | JobEvent) -> None:
    times = [getattr(fault, field.name) for field in fields(fault) if field.name in _TIMES]
    if times and all(each == 1.0 for each in times):
        raise InvalidRequest("a factor of 1 changes nothing: give another number")


def _when(given: dict[str, str]) -> FaultSteps:
    """Remove `from` and `for` from `given`; returns their steps."""
    steps = {
        field: _value(key, int, given.pop(key)) for key, field in _WHEN.items() if key in given
    }
    return FaultSteps(**steps)


def _given_values(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in _key_values(text):
        if key in given:
            raise InvalidRequest(f"{key} is given twice: give it once")
        given[key] = value
    return given


def _key_values(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(",")):
        key, has_value, value = part.partition("=")
        yield key.strip(), value.strip() if has_value else "yes"


def _value(key: str, type_: Any, text: str) -> Any:
    if text == _ALL and type_ in _MEANING_OF_ALL:
        return _MEANING_OF_ALL[type_]
    try:
        if type_ is bool:
            return _BOOLEANS[text]
        if type_ == WorkerPlaces:
            return tuple(_worker(each) for each in text.split("+"))
        return text if type_ in (str, str | None) else type_(text)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"{key} is {text!r}: want {_TYPE_NAMES[type_]}") from error


def _worker(text: str) -> tuple[int, int]:
    dp_rank, stage = text.split("/")
    return int(dp_rank), int(stage)


def _default(field: "Field[Any]") -> str | None:
    if field.default is MISSING:
        return None
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    return _ALL if field.default in (None, ()) else str(field.default)


@dataclass(frozen=True, slots=True)
class ParsedFaults:
    """Faults with the text of their options, and the events of the job."""

    texts: tuple[str, ...]
    faults: tuple[Fault, ...]
    events: tuple[JobEvent, ...]

    def runs(self, job: SimulatedJob, steps: Sequence[int]) -> list[SimulatedRun]:
        """The job's runs, after checking that every fault fits each of them."""
        attempts = unchecked_runs(job, steps, self.events)
        for text, fault in zip(self.texts, self.faults, strict=True):
            try:
                _refuse_late(fault, steps[-1])
                for attempt in attempts:
                    fault.check(attempt.job.world)
            except InvalidRequest as error:
                raise InvalidRequest(f"--fault {text}: {error}") from error
        return attempts


def parse_faults(texts: Sequence[str]) -> ParsedFaults:
    """Parse all --fault options."""
    parsed = [(text, parse_fault(text)) for text in texts]
    faults = [(text, each) for text, each in parsed if isinstance(each, Fault)]
    return ParsedFaults(
        texts=tuple(text for text, _ in faults),
        faults=tuple(fault for _, fault in faults),
        events=tuple(each for _, each in parsed if isinstance(each, JobEvent)),
    )


def _refuse_late(fault: Fault, last_step: int) -> None:
    if fault.when.first_step > last_step:
        raise InvalidRequest(
            f"it starts after the last step {last_step}: give an earlier from, or more --steps"
        )


def fault_list() -> str:
    """Every fault with its cause, one sentence and its keys."""
    kinds: list[type[Fault | JobEvent]] = [*FAULTS.values(), *EVENTS.values()]
    return "\n".join(
        [
            *(_fault_lines(kind) for kind in kinds),
            "Every fault but the last two also takes from=STEP and for=STEPS. Default: all steps.",
        ]
    )


def _fault_lines(kind: type[Fault | JobEvent]) -> str:
    sentence = (inspect.getdoc(kind) or "").split("\n")[0]
    return "\n".join(
        [
            f"{kind.name} (cause: {kind.cause or 'none'})",
            f"  {sentence}",
            f"  {_usage(kind)}",
            "",
        ]
    )


def _usage(kind: type[Fault | JobEvent]) -> str:
    """An example that works as it is, and the keys that may be left out, with their defaults."""
    optional = ",".join(
        f"{setting.key}={setting.default}"
        for setting in fault_settings(kind)
        if setting.default is not None
    )
    return fault_example(kind) + (f"  (also: {optional})" if optional else "")
