"""What JSON can hold, where a record leaves the form open: a cause's own evidence."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
else:
    Json = Any  # msgspec knows no recursive alias
