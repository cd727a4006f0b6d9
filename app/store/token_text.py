"""A token as its owner has it: pl_, a readable id, _, and a secret that is kept nowhere else."""

import hashlib
import re
import secrets
from typing import NamedTuple

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS = 10
_SECRET_CHARS = 43  # 62 ** 43 is more than 2 ** 256
_TOKEN = re.compile(rf"pl_([0-9A-Za-z]{{{_ID_CHARS}}})_([0-9A-Za-z]{{{_SECRET_CHARS}}})")


class TokenText(NamedTuple):
    """The two parts of a token."""

    token_id: str
    secret: str

    def __str__(self) -> str:
        return f"pl_{self.token_id}_{self.secret}"

    @property
    def digest(self) -> str:
        """What is stored of the secret; of 256 random bits, so guesses need not be slowed."""
        return hashlib.sha256(f"paceline token v1:{self}".encode()).hexdigest()


def new() -> TokenText:
    """A token that cannot be guessed."""
    return TokenText(_random(_ID_CHARS), _random(_SECRET_CHARS))


def parse(text: str) -> TokenText | None:
    """The parts of what may be one of our tokens; None if it cannot be one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else TokenText(*found.groups())


def _random(length: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(length))
