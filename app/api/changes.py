"""What somebody changed, as the audit says it: each field before and after."""

from collections.abc import Mapping
from typing import Any

# What is said of a secret that is another one now.
CHANGED = "changed"


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """{"old": ..., "new": ...} of each field that is not what it was, by its name."""
    return {
        name: {"old": before.get(name), "new": value}
        for name, value in after.items()
        if before.get(name) != value
    }
