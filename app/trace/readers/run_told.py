"""What files say of their run again and again, and must say the same way."""

from collections.abc import Callable

from app.errors import InvalidTrace

_LONGEST = 200
_MOST_VALUES = 8


class RunTold:
    """Values by their keys: of those in `single`, a run has one each."""

    def __init__(self, single: tuple[str, ...]) -> None:
        self._single = single
        self._values: dict[str, list[str]] = {}

    def note(self, at: Callable[[], str], key: str, value: str | int | None) -> None:
        """Somebody says this; nothing and an empty text say nothing.

        Raises:
            InvalidTrace: another value was said before.
        """
        if value is None or value == "":
            return
        text = str(value)[:_LONGEST]
        seen = self._values.setdefault(key, [])
        if text in seen:
            return
        if seen and key in self._single:
            raise InvalidTrace(
                f"{at()}: {key} is {text!r} here and {seen[0]!r} before: give the files of one run"
            )
        if len(seen) < _MOST_VALUES:
            seen.append(text)

    def one(self, key: str) -> str | None:
        """The value, None where nobody says one."""
        seen = self._values.get(key)
        return seen[0] if seen else None

    def labels(self, *keys: str) -> dict[str, str]:
        """Each key's values as one text, of those that were said."""
        return {key: ", ".join(self._values[key])[:_LONGEST] for key in keys if key in self._values}
