"""Which process of which job and run an OTLP resource is: its place, the job's sizes, its run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.errors import InvalidRequest
from app.trace.job import Parallelism
from app.trace.readers.otlp_span import Value, whole

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
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sender:
    """What a resource says; None is what it does not. `sizes` are by the names of Parallelism."""

    job: str | None
    run_key: str | None
    rank: int | None
    dp_rank: int | None
    stage: int | None
    host: str | None
    sizes: Mapping[str, int]
    is_opted_in: bool

    def parallelism(self) -> Parallelism | None:
        """The job's sizes; None where the resource has not all that must be known."""
        if not {"dp_size", "pp_size"} <= self.sizes.keys():
            return None
        return Parallelism(**self.sizes)

    def place(self, sizes: Parallelism) -> tuple[int, int, int]:
        """Dp rank, stage and number among the peers that do the same work, in such a job.

        Where only the global rank is told, Megatron's usual order gives the rest: tensor-parallel
        ranks count fastest, then those of a shared sequence, data-parallel ones, stages.

        Raises:
            InvalidRequest: it cannot be told, or contradicts the sizes.
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


def sender_of(attributes: Mapping[str, Value]) -> Sender:
    """What these attributes of a resource say.

    Raises:
        InvalidRequest: one of them cannot be; the message names it.
    """
    instance = _INSTANCE.fullmatch(_text(attributes, ("service.instance.id",)) or "")
    rank = _number(attributes, _RANK_KEYS)
    run_key = _text(attributes, _RUN_KEYS[:2])
    sizes = {name: _number(attributes, keys, least=1) for name, keys in _SIZES.items()}
    return Sender(
        job=_text(attributes, (JOB_KEY,)),
        run_key=run_key if run_key or instance is None else instance[1] or None,
        rank=int(instance[2]) if rank is None and instance else rank,
        dp_rank=_number(attributes, _DP_RANK_KEYS),
        stage=_number(attributes, _STAGE_KEYS),
        host=_text(attributes, ("host.name",)),
        sizes={name: size for name, size in sizes.items() if size is not None},
        is_opted_in=_text(attributes, (HOST_TIMES_KEY,)) == ANALYSE,
    )


def _text(attributes: Mapping[str, Value], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = attributes.get(key)
        # Numbers are fine as names: a run may be called 4711.
        if value is not None and (text := _UNPRINTABLE.sub("", str(value)).strip()):
            return text[:255]
    return None


def _number(
    attributes: Mapping[str, Value], keys: tuple[str, ...], *, least: int = 0
) -> int | None:
    for key in keys:
        if key not in attributes:
            continue
        value = whole(attributes[key])
        if value is None or not least <= value <= MOST:
            shown = str(attributes[key])[:40]
            raise InvalidRequest(f"{key} is {shown!r}: want a whole number from {least} up")
        return value
    return None
