"""How one attempt to send a message went."""

from dataclasses import dataclass

_OVERLOADED = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """How one attempt went; `status` is HTTP's or SMTP's, None where none came.

    `detail` is for people: of the receiver's own words only the first few, printable ones.
    `retry_after` is the receiver's header as it is.
    """

    status: int | None
    detail: str
    retry_after: str | None = None
    took_s: float = 0.0
    is_late: bool = False

    @property
    def is_success(self) -> bool:
        """Whether the receiver has taken it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_overloaded(self) -> bool:
        """Whether the receiver, or a gateway before it, needs a longer rest."""
        return self.is_late or self.status in _OVERLOADED
