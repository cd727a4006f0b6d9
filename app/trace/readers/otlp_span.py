"""What is kept of OTLP spans: the few attributes that say which operation of which rank they are.

Everything here comes from outside: numbers are checked where they are used, texts are cut short.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Value = str | int | float | bool
NameWanted = Callable[[str], bool]

MAX_TEXT = 256  # of a name or a value: what is longer is none of those that we know
MAX_SPANS = 50_000  # in one message
MAX_SENDERS = 50_000  # in one message, with spans or without
_LAST_INT = 2**53
_DAY_NS = 86_400 * 10**9
# Megatron-LM's, and Paceline's own where Megatron's say too little.
STEP_KEY = "megatron.iteration"
MICROBATCH_KEYS = ("megatron.microbatch_id", "dl.microbatch_id")
NUM_MICROBATCHES_KEY = "megatron.num_microbatches"
STAGE_KEY = "dl.pipeline_parallel.rank"
CHUNK_KEY = "paceline.model_chunk"
SPAN_KEYS = frozenset(
    {STEP_KEY, *MICROBATCH_KEYS, NUM_MICROBATCHES_KEY, STAGE_KEY, CHUNK_KEY}
)  # fmt: skip


class Span(NamedTuple):
    """One span of a known name; None is what it does not say."""

    name: str
    span_id: str
    start_ns: int
    end_ns: int
    step: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    num_microbatches: int | None = None
    stage: int | None = None


@dataclass(slots=True)
class Sent:
    """All that one message says of one resource (one process), in the order it came.

    `num_spans` counts all of its spans, those of other names, too; `refused` has what is wrong
    with some of them, in words.
    """

    attributes: dict[str, Value] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    num_spans: int = 0
    num_refused: int = 0
    refused: str = ""

    def refuse(self, why: str, number: int = 1) -> None:
        """Count spans that cannot be taken; the first reason is kept."""
        self.num_refused += number
        self.refused = self.refused or why


def span_of(name: str, span_id: str, start_ns: int, end_ns: int, told: Mapping[str, Value]) -> Span:
    """The span with what its attributes tell.

    Raises:
        ValueError: it cannot be; the message says why.
    """
    if not span_id:
        raise ValueError("it has no spanId")
    if not 0 < start_ns <= end_ns:
        raise ValueError(f"it lasts from {start_ns} to {end_ns} ns: its end is before its start")
    if end_ns - start_ns > _DAY_NS or end_ns >= 2**63 - _DAY_NS:
        raise ValueError(f"it lasts from {start_ns} to {end_ns} ns: more than a day, or too late")
    if not told:  # as most
        return Span(name, span_id, start_ns, end_ns)
    microbatch = next((key for key in MICROBATCH_KEYS if key in told), "")
    return Span(
        name,
        span_id,
        start_ns,
        end_ns,
        step=_count(told, STEP_KEY),
        microbatch=_count(told, microbatch),
        chunk=_count(told, CHUNK_KEY),
        num_microbatches=_count(told, NUM_MICROBATCHES_KEY),
        stage=_count(told, STAGE_KEY),
    )


def _count(told: Mapping[str, Value], key: str) -> int | None:
    """A number from 0 up; None where it is not told."""
    value = whole(told.get(key))
    if key in told and (value is None or value < 0):
        raise ValueError(f"{key} is {str(told[key])[:40]!r}: want a whole number from 0 up")
    return value


def whole(value: Value | None) -> int | None:
    """The value if it is a whole number, in whichever of OTLP's types it was sent."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        is_number = value.isascii() and value.isdigit() and len(value) <= 16
        value = int(value) if is_number else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) <= _LAST_INT else None
    return value if value is not None and -_LAST_INT <= value <= _LAST_INT else None
