"""Thresholds of the diagnosis: where they are, what they hold, which are read, and others instead.

A module of `app.diagnosis` keeps its thresholds as fields of one frozen dataclass, whose only
instance is a global of the module. Other modules may hold the same instance by another name, so
that it is replaced wherever it is bound.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import app.diagnosis

SUFFIX = "Limits"  # of the names of such classes
FACTORS = (0.9, 1.1)
_Number = int | float


@dataclass(frozen=True, slots=True)
class Threshold:
    """One field: of which object, and from where its value is.

    `key` names it in reports, as "detectors.gc_pause.LIMITS.pause_s"; `module` is the first part of
    it. `origin` is the comment at the field; what the class says holds for all of its fields.
    """

    module: str
    limits: str
    field: str
    value: Any
    origin: str

    @property
    def key(self) -> str:
        """Its name in reports."""
        return f"{self.module}.{self.limits}.{self.field}"

    @property
    def owner(self) -> Any:
        """The object that has the field."""
        return getattr(sys.modules[f"{app.diagnosis.__name__}.{self.module}"], self.limits)

    def varied(self) -> dict[float, Any]:
        """The values to be tried, by factor: other ones than its own."""
        values = {factor: scaled(self.value, factor) for factor in FACTORS}
        return {factor: value for factor, value in values.items() if value != self.value}


def scaled(value: Any, factor: float) -> Any:
    """The value times the factor: integers move by 1 at least, all members of a tuple alike.

    Other numbers stay on their side of 1, at most halfway to it: shares are shares, ratios ratios.
    """
    if isinstance(value, tuple):
        return tuple(scaled(member, factor) for member in value)
    if isinstance(value, bool) or not isinstance(value, _Number):
        return value
    if isinstance(value, float):
        other = value * factor
        is_across = (value - 1) * (other - 1) < 0 or (other == 1 != value)
        return (value + 1) / 2 if is_across else other
    step = max(1, round(abs(value) * abs(factor - 1)))
    return value + (step if factor > 1 else -step)


@cache
def all_thresholds() -> tuple[Threshold, ...]:
    """Every field of every such object that `app.diagnosis` has, by module; no field twice."""
    return tuple(
        Threshold(
            module.__name__.removeprefix(f"{app.diagnosis.__name__}."),
            name,
            field.name,
            getattr(limits, field.name),
            origins[field.name],
        )
        for module in _modules()
        for name, limits in _limits_of(module).items()
        for origins in [origins_of(type(limits))]
        for field in fields(limits)
    )


def _modules() -> list[ModuleType]:
    package = app.diagnosis
    found = walk_packages(package.__path__, f"{package.__name__}.")
    return [import_module(module.name) for module in found]


def _limits_of(module: ModuleType) -> dict[str, Any]:
    """The module's own objects, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if is_dataclass(value)
        and not isinstance(value, type)
        and type(value).__name__.endswith(SUFFIX)
        and type(value).__module__ == module.__name__
    }


def origins_of(kind: type) -> dict[str, str]:
    """For each field the comment beside it or above it; one above holds until the next one."""
    origins = dict.fromkeys((field.name for field in fields(kind)), "")
    comment, is_open = "", False
    for line in inspect.getsource(kind).splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment = f"{comment} {text[1:].strip()}" if is_open else text[1:].strip()
        elif (name := text.partition(":")[0]) in origins:
            origins[name] = text.partition("  # ")[2] or comment
        is_open = text.startswith("#")
    return origins


@contextmanager
def replaced(others: Mapping[str, tuple[Any, Any]]) -> Iterator[None]:
    """While the block runs, other objects instead of some: {any name: (object, other)}."""
    bound = [
        (module, name, other)
        for limits, other in others.values()
        for module, name in _bindings()[id(limits)]
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in bound]
    try:
        _bind(bound)
        yield
    finally:
        _bind(before)


def _bind(values: Iterable[tuple[ModuleType, str, Any]]) -> None:
    """Bind each value to the name in the module, which forgets what its functions have cached."""
    for module, name, value in values:
        setattr(module, name, value)
        for function in list(vars(module).values()):
            if hasattr(function, "cache_clear"):
                function.cache_clear()


@cache
def _bindings() -> dict[int, list[tuple[ModuleType, str]]]:
    """Where the application binds each of these objects, by id; they live as long as it does."""
    wanted = {id(threshold.owner) for threshold in all_thresholds()}
    bindings: dict[int, list[tuple[ModuleType, str]]] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "app":
            for name, value in list(vars(module).items()):
                if id(value) in wanted:
                    bindings.setdefault(id(value), []).append((module, name))
    return bindings


def with_value(threshold: Threshold, value: Any) -> Any:
    """The object that has the field, with another value of it."""
    return replace(threshold.owner, **{threshold.field: value})


def watched(limits: Any, on_read: Callable[[str], None]) -> Any:
    """An object that is equal to this one, and says which of its fields is read."""
    names = {field.name for field in fields(limits)}

    def read(self: Any, name: str) -> Any:
        if name in names:
            on_read(name)
        return object.__getattribute__(self, name)

    kind = type(type(limits).__name__, (type(limits),), {"__getattribute__": read})
    return kind(**{name: getattr(limits, name) for name in names})
