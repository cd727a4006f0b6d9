"""JSON schemas of results, from the records themselves."""

from typing import Any

import msgspec

from app.result.window_result import WindowResult


def result_schemas(ref_template: str) -> dict[str, Any]:
    """Schemas by name of a window's result and of all that it consists of."""
    _, found = msgspec.json.schema_components([WindowResult], ref_template=ref_template)
    return found
