"""Which spans are operations: Megatron-LM's names, and those that the caller has patterns for."""

import re
from collections.abc import Sequence

from app.errors import InvalidTrace
from app.trace.readers.otlp_span import Span
from app.trace.readers.otlp_steps import NAMES, OPS, STEP

_MAX_NAMES = 100_000


class Names:
    """Finds each name's op type once; a pattern of the caller goes before a name of Megatron's.

    A pattern's named groups `mb` and `chunk` are the micro-batch and model chunk.
    """

    def __init__(self, patterns: Sequence[tuple[re.Pattern[str], str]] = ()) -> None:
        self._patterns = patterns
        self.optypes = dict(OPS)
        self._numbers: dict[str, tuple[int | None, int | None]] = {}
        self._seen = set(NAMES) if not patterns else set()

    def wants(self, name: str) -> bool:
        """Whether a span of this name is of any use."""
        if self._patterns and name not in self._seen:
            self._look_up(name)
        return name in self.optypes or name in NAMES

    def is_step(self, span: Span) -> bool:
        """Whether it spans a whole training step."""
        return span.name == STEP

    def renamed(self, span: Span) -> Span:
        """The span with the numbers that its name holds."""
        microbatch, chunk = self._numbers.get(span.name, (None, None))
        if microbatch is not None:
            span = span._replace(microbatch=microbatch)
        return span if chunk is None else span._replace(chunk=chunk)

    def _look_up(self, name: str) -> None:
        if len(self._seen) >= _MAX_NAMES:
            raise InvalidTrace(
                f"spans have more than {_MAX_NAMES:,} different names: leave numbers out of them"
            )
        self._seen.add(name)
        for pattern, optype in self._patterns:
            if (match := pattern.search(name)) is not None:
                self.optypes[name] = optype
                groups = match.groupdict()
                self._numbers[name] = _number(groups.get("mb")), _number(groups.get("chunk"))
                return


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit()
    return int(text[:9]) if text is not None and is_number else None
