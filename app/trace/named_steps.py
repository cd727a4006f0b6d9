"""Steps as people name them: 3,5-9."""

from collections.abc import Sequence

from app.errors import InvalidRequest

_MAX_DIGITS = 18


def chosen(named: str, steps: Sequence[int]) -> tuple[int, ...]:
    """The named ones, ascending; of a range those that are among `steps`, a single one anyway.

    Raises:
        InvalidRequest: the text names no step, or a range has none of `steps`.
    """
    found: set[int] = set()
    for part in named.split(","):
        low, high = _range(part.strip())
        inside = {low} if low == high else {step for step in steps if low <= step <= high}
        if not inside:
            raise InvalidRequest(
                f"there is no step from {low} to {high}: choose from {steps[0]} to {steps[-1]}"
            )
        found |= inside
    return tuple(sorted(found))


def _range(part: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    low, high = (_number(text, part) for text in (first, last if dash else first))
    if low > high:
        raise InvalidRequest(f"steps {part} end before they begin: write {high}-{low}")
    return low, high


def _number(text: str, part: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidRequest(f"{part[:40]!r} names no step: write 3 or 5-9, with commas between")
    return int(text)
