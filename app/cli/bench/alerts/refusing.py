"""An endpoint that fails now and then: with an error, without an answer, or since it is overloaded.

Which messages it fails for follows from their ids, and each is taken in the end.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

Refusal = int | Literal["reset"]

# Of so many messages each is met with these, one attempt after the other; all others are taken.
_OUT_OF = 12
_MET_WITH: Sequence[Sequence[Refusal]] = ((500,), ("reset",), (500, "reset"), (503,))


@dataclass
class Refusing:
    """Endpoints of these names refuse a third of all messages, once or twice each."""

    names: Collection[str] = ()
    _attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, endpoint: str, delivery_id: str) -> Refusal | None:
        """How the next attempt of this message is met; None: it is taken."""
        if endpoint not in self.names:
            return None
        with self._lock:
            attempt = self._attempts[endpoint, delivery_id]
            self._attempts[endpoint, delivery_id] += 1
        number = hashlib.sha256(delivery_id.encode()).digest()[0] % _OUT_OF
        met_with = _MET_WITH[number] if number < len(_MET_WITH) else ()
        return met_with[attempt] if attempt < len(met_with) else None
