"""Refusals that say which formats there are."""

from collections.abc import Sequence

from app.errors import UnsupportedMedia


class UnknownFormat(UnsupportedMedia):
    """A content type, encoding or version that is not known; the problem lists those that are.

    `members` are lists by the name that the problem has them under, such as `known_versions`.
    """

    def __init__(self, message: str, **members: Sequence[str | int]) -> None:
        super().__init__(message)
        self.members = {name: list(known) for name, known in members.items()}
