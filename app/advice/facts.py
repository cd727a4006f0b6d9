"""The owner's facts, and how the command line and the API take them: limits, lists as text."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from app.errors import InvalidRequest

Scheduler = Literal["slurm", "kubernetes"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that no trace has and only the job's owner knows; None where not given.

    `layers` are transformer layers of the whole model. A restart costs `restart_minutes`, and half
    of `checkpoint_minutes`, the time between checkpoints, of work done again. Where that time is
    not given, it is Daly's, if writing one takes `checkpoint_save_minutes` and the job fails once
    in `mtbf_hours`. `expert_loads` are tokens of each expert of a layer, `expert_share` the
    experts' share of forward and backward. `document_lengths` are tokens of the data set's
    documents in the order of loading, `max_tokens` those that a micro-batch may have.
    """

    layers: int | None = None
    layers_by_stage: tuple[int, ...] | None = None
    scheduler: Scheduler | None = None
    restart_minutes: float | None = None
    checkpoint_minutes: float | None = None
    checkpoint_save_minutes: float | None = None
    mtbf_hours: float | None = None
    expert_loads: tuple[float, ...] | None = None
    expert_share: float | None = None
    document_lengths: tuple[int, ...] | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.expert_share is not None and not 0 <= self.expert_share <= 1:
            raise InvalidRequest(
                f"the experts' share of forward and backward is {self.expert_share}: give 0 to 1"
            )

    @property
    def interval_minutes(self) -> float | None:
        """Minutes between checkpoints: as given, or the best interval; None if not known."""
        if self.checkpoint_minutes is not None:
            return self.checkpoint_minutes
        if self.checkpoint_save_minutes is None or self.mtbf_hours is None:
            return None
        return daly_interval(self.checkpoint_save_minutes, 60 * self.mtbf_hours)

    @property
    def stop_minutes(self) -> float | None:
        """Expected minutes that one restart costs; None unless both parts are known.

        The restart, and half an interval of work done again, as it comes at any moment.
        """
        interval = self.interval_minutes
        if self.restart_minutes is None or interval is None:
            return None
        return self.restart_minutes + interval / 2


# Daly's expansion holds below; from there on a checkpoint is written once in M.
_LARGEST_COST = 2.0


def daly_interval(checkpoint: float, mtbf: float) -> float:
    """Computing time between two checkpoints that loses least, in the unit of the arguments.

        sqrt(2 delta M) (1 + sqrt(x) / 3 + x / 9) - delta, with x = delta / (2 M)

    M where delta is 2 M or more. Failures are a Poisson process with mean time M between them
    (`mtbf`); delta is what one checkpoint costs. Both are above 0. Source: Daly 2006, "A higher
    order estimate of the optimum checkpoint interval".
    """
    if checkpoint >= _LARGEST_COST * mtbf:
        return mtbf
    x = checkpoint / (2 * mtbf)
    return sqrt(2 * checkpoint * mtbf) * (1 + sqrt(x) / 3 + x / 9) - checkpoint


# Characters of lists as text: all of them fit into one request line.
MAX_LAYOUT_CHARS, MAX_LIST_CHARS = 2048, 4096
MAX_LAYERS = 1000  # the search moves them one by one
MAX_MINUTES = 7 * 24 * 60.0  # a week
MAX_MTBF_HOURS = 1e5
MIN_POSITIVE = 1e-3  # of what cannot be 0
MAX_EXPERTS = 1024  # placing them compares each with each rank
MAX_TOKENS = 1 << 32
MAX_DOCUMENTS = 2_000_000  # thousands of steps; packing reads only as many as it simulates
_MAX_LOAD = 1e15  # tokens; sums of them stay finite
_MAX_DIGITS, _MAX_LENGTH_DIGITS = 4, 9
_NO_LENGTHS = "document lengths want whole numbers of tokens, one a line: 812"
_NO_LOADS = "expert loads want the tokens of each expert of a layer: 812,40,95.5,120"


def facts_of(
    *,
    layers: int | None = None,
    layout: str | None = None,
    scheduler: Scheduler | None = None,
    restart_minutes: float | None = None,
    checkpoint_minutes: float | None = None,
    checkpoint_save_minutes: float | None = None,
    mtbf_hours: float | None = None,
    expert_loads: str | None = None,
    expert_share: float | None = None,
    document_lengths: str | None = None,
    max_tokens: int | None = None,
) -> Facts:
    """The facts, None where not given. Layout, loads and lengths are lists as text.

    Raises:
        InvalidRequest: layers are given twice, or a number is not within its limits.
    """
    if layers is not None and layout is not None:
        raise InvalidRequest(
            "give either layers (as many on each stage) or layout (those of each stage), not both"
        )
    _check("layers", layers, least=1, most=MAX_LAYERS)
    _check("restart minutes", restart_minutes, most=MAX_MINUTES)
    _check("checkpoint minutes", checkpoint_minutes, most=MAX_MINUTES)
    _check("checkpoint save minutes", checkpoint_save_minutes, least=MIN_POSITIVE, most=MAX_MINUTES)
    _check("mtbf hours", mtbf_hours, least=MIN_POSITIVE, most=MAX_MTBF_HOURS)
    _check("max tokens", max_tokens, least=1, most=MAX_TOKENS)
    return Facts(
        layers=layers,
        layers_by_stage=None if layout is None else parse_layout(layout),
        scheduler=scheduler,
        restart_minutes=restart_minutes,
        checkpoint_minutes=checkpoint_minutes,
        checkpoint_save_minutes=checkpoint_save_minutes,
        mtbf_hours=mtbf_hours,
        expert_loads=None if expert_loads is None else parse_loads(expert_loads),
        expert_share=expert_share,
        document_lengths=None if document_lengths is None else parse_lengths(document_lengths),
        max_tokens=max_tokens,
    )


def parse_layout(text: str) -> tuple[int, ...]:
    """Layers of each stage, from a text such as `9,9,9,6`.

    Raises:
        InvalidRequest: it is no such list, or has no layer, or more than `MAX_LAYERS`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise InvalidRequest("layout wants a whole number of layers for each stage: 9,9,9,6")
    layers = tuple(map(int, parts))
    if not 1 <= sum(layers) <= MAX_LAYERS:
        raise InvalidRequest(
            f"layout has {sum(layers)} layers: at least 1 and at most {MAX_LAYERS} are searched"
        )
    return layers


def parse_loads(text: str) -> tuple[float, ...]:
    """Tokens of each expert of a layer, from a text such as `812,40,95.5,120`.

    Raises:
        InvalidRequest: it is no such list, or has more than `MAX_EXPERTS`.
    """
    parts = text.split(",")
    if len(parts) > MAX_EXPERTS:
        raise InvalidRequest(f"{len(parts)} expert loads: at most {MAX_EXPERTS} are placed")
    try:
        loads = tuple(map(float, parts))
    except ValueError as error:
        raise InvalidRequest(_NO_LOADS) from error
    if not all(0 <= load <= _MAX_LOAD for load in loads):
        raise InvalidRequest(_NO_LOADS)
    return loads


def parse_lengths(text: str) -> tuple[int, ...]:
    """Tokens of each document, from whole numbers with spaces, commas or line breaks between them.

    Raises:
        InvalidRequest: it is no such list, or has more than `MAX_DOCUMENTS`.
    """
    parts = text.replace(",", " ").split()
    if not 1 <= len(parts) <= MAX_DOCUMENTS:
        raise InvalidRequest(f"{len(parts):,} documents: give 1 to {MAX_DOCUMENTS:,} lengths")
    wrong = next((at for at, part in enumerate(parts) if not _is_length(part)), None)
    if wrong is not None:
        raise InvalidRequest(f"{_NO_LENGTHS}; number {wrong + 1} is {parts[wrong][:20]!r}")
    return tuple(map(int, parts))


def _is_length(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _MAX_LENGTH_DIGITS


def _check(name: str, value: float | None, *, most: float, least: float = 0) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidRequest(f"{name}: {value:g}; want {least:g} to {most:,.0f}")
