"""Which subjects a rule is about."""

from collections.abc import Mapping
from fnmatch import fnmatchcase


def matching(pattern: str, values: Mapping[str, float]) -> Mapping[str, float]:
    """The values whose subjects match; a pattern with * and ?."""
    if pattern == "*":
        return values
    return {name: value for name, value in values.items() if fnmatchcase(name, pattern)}
