"""What the audit says of rules that were replaced: which ones, and the texts by their digests."""

import hashlib
from typing import Any

from app.api.changes import changed
from app.api.rules_body import RulesOut

# Of more of them the names alone: the rest is in the texts.
_MOST_IN_FULL = 20
_DIGEST_CHARS = 16


def rule_changes(before: RulesOut, after: RulesOut) -> dict[str, Any]:
    """Names of rules that came, went and changed, and each field before and after."""
    old, new = _by_name(before), _by_name(after)
    changes = {
        name: fields
        for name, rule in new.items()
        if name in old and (fields := changed(old[name], rule))
    }
    return {
        "version": after.version,
        "added": [name for name in new if name not in old],
        "removed": [name for name in old if name not in new],
        "changed": list(changes),
        "changes": dict(list(changes.items())[:_MOST_IN_FULL]),
        "sha256": {"old": _digest(before.text), "new": _digest(after.text)},
    }


def _by_name(rules: RulesOut) -> dict[str, dict[str, Any]]:
    return {rule.name: rule.model_dump(mode="json", by_alias=True) for rule in rules.rules}


def _digest(text: str) -> str:
    """Whether two texts are the same, and whether a file that somebody has is the one."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
