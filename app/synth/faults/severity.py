"""How bad a fault is: numbers that make no sense are refused."""

from app.errors import InvalidRequest

# An operation of a day is the longest that a worker may send.
_MOST_TIMES = 1e5
_MOST_S = 3_600.0


def refuse_factor(factor: float) -> None:
    """Nothing, if something can take so many times as long.

    Raises:
        InvalidRequest: it cannot.
    """
    if not 0 < factor <= _MOST_TIMES:
        raise InvalidRequest(
            f"a fault of {factor} times is none: give a number above 0, at most {_MOST_TIMES:,.0f}"
        )


def refuse_seconds(seconds: float) -> None:
    """Nothing, if something can last so long.

    Raises:
        InvalidRequest: it cannot.
    """
    if not 0 < seconds <= _MOST_S:
        raise InvalidRequest(
            f"a fault of {seconds} seconds is none: give a number above 0, at most {_MOST_S:,.0f}"
        )


def refuse_share(name: str, share: float) -> None:
    """Nothing, if it is above 0 and at most 1.

    Raises:
        InvalidRequest: it is not; the message calls it `name`.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"{name} is {share}: give a number above 0, at most 1")


def refuse_below(name: str, number: int, least: int) -> None:
    """Nothing, if the number is at least `least`.

    Raises:
        InvalidRequest: it is not; the message calls it `name`.
    """
    if number < least:
        raise InvalidRequest(f"{name} is {number}: give {least} or more")
