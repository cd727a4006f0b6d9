"""JSON as receivers get it: compact, UTF-8, figures that are none as null."""

import json
import math
from datetime import UTC, datetime
from typing import Any


def json_text(content: Any) -> str:
    """The content as JSON."""
    return json.dumps(_finite(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def rfc3339(unix_s: float) -> str:
    """A moment in UTC, to the millisecond, without zeros at the end: as Go's servers write it."""
    moment = datetime.fromtimestamp(round(unix_s, 3), UTC)
    text = moment.isoformat(timespec="milliseconds").removesuffix("+00:00")
    return f"{text.rstrip('0').removesuffix('.')}Z"


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return content
