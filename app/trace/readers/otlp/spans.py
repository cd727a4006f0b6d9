"""The used attributes of OTLP spans, and of resources (processes).

A span's attributes identify the operation. A resource's attributes have the job, its run, its sizes
and the rank. All of them are untrusted input: numbers are checked where they are used, texts are
cut.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.errors import InvalidRequest
from app.trace.job import Parallelism

AttributeValue = str | int | float | bool
NameWanted = Callable[[str], bool]

MAX_TEXT = 256  # of a name or a value: all known ones are shorter
MAX_SPANS = 50_000  # in one message
MAX_RESOURCES = 50_000  # in one message, with spans or without
_MAX_WHOLE = 2**53
_DAY_NS = 86_400 * 10**9
# Megatron-LM's keys, and Paceline's own where Megatron has none.
STEP_KEY = "megatron.iteration"
MICROBATCH_KEYS = ("megatron.microbatch_id", "dl.microbatch_id")
NUM_MICROBATCHES_KEY = "megatron.num_microbatches"
STAGE_KEY = "dl.pipeline_parallel.rank"
CHUNK_KEY = "paceline.model_chunk"
SPAN_KEYS = frozenset(
    {STEP_KEY, *MICROBATCH_KEYS, NUM_MICROBATCHES_KEY, STAGE_KEY, CHUNK_KEY}
)  # fmt: skip


class OtlpSpan(NamedTuple):
    """One span of a known name; absent attributes are None."""

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
class SentSpans:
    """The spans of one resource (process) in one message, in their order.

    `num_spans` counts all of its spans, with any name; `refused` is the reason for the first of the
    refused ones.
    """

    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    spans: list[OtlpSpan] = field(default_factory=list)
    num_spans: int = 0
    num_refused: int = 0
    refused: str = ""

    def refuse(self, reason: str, number: int = 1) -> None:
        """Count refused spans; the first reason is kept."""
        self.num_refused += number
        self.refused = self.refused or reason


def span_of(
    name: str, span_id: str, start_ns: int, end_ns: int, values: Mapping[str, AttributeValue]
) -> OtlpSpan:
    """A span with its attributes; raises ValueError, which says why, if one is not valid."""
    if not span_id:
        raise ValueError("it has no spanId")
    if not 0 < start_ns <= end_ns:
        raise ValueError(f"it lasts from {start_ns} to {end_ns} ns: its end is before its start")
    if end_ns - start_ns > _DAY_NS or end_ns >= 2**63 - _DAY_NS:
        raise ValueError(f"it lasts from {start_ns} to {end_ns} ns: more than a day, or too late")
    if not values:  # most spans
        return OtlpSpan(name, span_id, start_ns, end_ns)
    microbatch = next((key for key in MICROBATCH_KEYS if key in values), "")
    keys = (STEP_KEY, microbatch, CHUNK_KEY, NUM_MICROBATCHES_KEY, STAGE_KEY)
    return OtlpSpan(name, span_id, start_ns, end_ns, *[_count(values, key) for key in keys])


def _count(values: Mapping[str, AttributeValue], key: str) -> int | None:
    """An integer from 0 on; None if absent."""
    value = whole_number(values.get(key))
    if key in values and (value is None or value < 0):
        raise ValueError(f"{key} is {str(values[key])[:40]!r}: want a whole number from 0 up")
    return value


def whole_number(value: AttributeValue | None) -> int | None:
    """The value as an integer, whatever its OTLP type; None if it is no whole number."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        is_number = value.isascii() and value.isdigit() and len(value) <= 16
        value = int(value) if is_number else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) <= _MAX_WHOLE else None
    return value if value is not None and -_MAX_WHOLE <= value <= _MAX_WHOLE else None


JOB_KEY = "paceline.job"
RUN_KEY = "paceline.run_key"
HOST_TIMES_KEY = "paceline.host_times"
ANALYSE = "analyse"
_RUN_KEYS = (RUN_KEY, "nemo.run.id", "service.instance.id")
_RANK_KEYS = ("paceline.rank", "dl.rank")
_STAGE_KEYS = ("paceline.stage", "dl.pipeline_parallel.rank")
_DP_RANK_KEYS = ("paceline.dp_rank", "dl.data_parallel.rank")
_SIZES = {
    "dp_size": ("paceline.dp_size", "dl.data_parallel.size"),
    "pp_size": ("paceline.pp_size", "dl.pipeline_parallel.size"),
    "tp_size": ("paceline.tp_size", "dl.tensor_parallel.size"),
    "vpp_size": ("paceline.vpp_size",),
    "dsp_size": ("paceline.dsp_size", "dl.context_parallel.size"),
}
_INSTANCE = re.compile(r"(.*)-rank([0-9]{1,9})")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OtlpSender:
    """A resource's job, run and rank; None if absent. `sizes` have the names of `Parallelism`."""

    job: str | None
    run_key: str | None
    rank: int | None
    dp_rank: int | None
    stage: int | None
    host: str | None
    sizes: Mapping[str, int]
    is_opted_in: bool

    def parallelism(self) -> Parallelism | None:
        """The job's sizes; None if the resource lacks a required one."""
        has_required = {"dp_size", "pp_size"} <= self.sizes.keys()
        return Parallelism(**self.sizes) if has_required else None

    def place(self, sizes: Parallelism) -> tuple[int, int, int]:
        """Dp rank, stage and index among the peers that do the same work.

        If only the global rank is known, the others follow from Megatron's usual order:
        tensor-parallel ranks vary fastest, then sequence-parallel ones, data-parallel ones, stages.

        Raises:
            InvalidRequest: the place is unknown, or contradicts the sizes.
        """
        stage, dp_rank, peer = self.stage, self.dp_rank, 0
        if self.rank is not None:
            if self.rank >= sizes.world_size:
                raise InvalidRequest(
                    f"rank {self.rank} of a job with {sizes.world_size} ranks: "
                    "correct the parallel sizes"
                )
            rest, peer = divmod(self.rank, sizes.tp_size * sizes.dsp_size)
            usual_stage, usual_dp_rank = divmod(rest, sizes.dp_size)
            if stage is not None and dp_rank is None and stage != usual_stage:
                raise InvalidRequest(
                    f"rank {self.rank} is of stage {stage}, which in the usual order is "
                    f"{usual_stage}: say its place in paceline.stage and paceline.dp_rank"
                )
            if stage is None or dp_rank is None:
                stage, dp_rank = usual_stage, usual_dp_rank
        if stage is None or dp_rank is None:
            raise InvalidRequest(
                "its rank is not told: service.instance.id ends with -rankN, or set paceline.rank"
            )
        if stage >= sizes.pp_size or dp_rank >= sizes.dp_size:
            raise InvalidRequest(
                f"dp rank {dp_rank}, stage {stage} of a job with dp_size {sizes.dp_size} and "
                f"pp_size {sizes.pp_size}: correct the parallel sizes"
            )
        return dp_rank, stage, peer


def sender_of(attributes: Mapping[str, AttributeValue]) -> OtlpSender:
    """Job, run and rank in a resource's attributes; raises InvalidRequest with the invalid one."""
    instance = _INSTANCE.fullmatch(_text(attributes, ("service.instance.id",)) or "")
    rank = _number(attributes, _RANK_KEYS)
    run_key = _text(attributes, _RUN_KEYS[:2])
    sizes = {name: _number(attributes, keys, least=1) for name, keys in _SIZES.items()}
    return OtlpSender(
        job=_text(attributes, (JOB_KEY,)),
        run_key=run_key if run_key or instance is None else instance[1] or None,
        rank=int(instance[2]) if rank is None and instance else rank,
        dp_rank=_number(attributes, _DP_RANK_KEYS),
        stage=_number(attributes, _STAGE_KEYS),
        host=_text(attributes, ("host.name",)),
        sizes={name: size for name, size in sizes.items() if size is not None},
        is_opted_in=_text(attributes, (HOST_TIMES_KEY,)) == ANALYSE,
    )


def _text(attributes: Mapping[str, AttributeValue], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = attributes.get(key)
        # Numbers are accepted as names: a run may be called 4711.
        if value is not None and (text := _UNPRINTABLE.sub("", str(value)).strip()):
            return text[:255]
    return None


def _number(
    attributes: Mapping[str, AttributeValue], keys: tuple[str, ...], *, least: int = 0
) -> int | None:
    for key in keys:
        if key not in attributes:
            continue
        value = whole_number(attributes[key])
        if value is None or not least <= value <= MAX_NUMBER:
            shown = str(attributes[key])[:40]
            raise InvalidRequest(f"{key} is {shown!r}: want a whole number from {least} up")
        return value
    return None
