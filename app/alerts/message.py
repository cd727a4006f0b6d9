"""What goes over the wire to one receiver, made once and the same in every attempt."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Standard Webhooks' advice, and less than any receiver refuses; a routing key still has room.
MAX_BYTES = 19_800


@dataclass(frozen=True, slots=True)
class Message:
    """A body with its headers; signatures and the moment are added at each attempt."""

    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: str | None = None  # of an e-mail

    @property
    def num_bytes(self) -> int:
        """Size of the body on the wire."""
        return len(self.body.encode())
