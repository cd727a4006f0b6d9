"""Maps names and collectives of a Kineto file to operation types; needs the rank's position."""

import re
from collections import Counter
from collections.abc import Sequence

from app.errors import InvalidTrace
from app.trace.ops import OP_CODES
from app.trace.readers.importing import ImportOptions, MissingData
from app.trace.readers.kineto.process_groups import ParallelPosition, axis_of
from app.trace.readers.kineto.trace_file import EventName, KernelCollective
from app.trace.readers.name_map import NameMap, NameMeaning

# torch.distributed.pipelining's schedules from a plan: stage of the whole model, kind, micro-batch.
_PIPELINING = re.compile(r"PP:(\d{1,5})([FBIW])(\d{1,9})$")
_ACTIONS = {
    "F": "forward-compute",
    "B": "backward-compute",
    "I": "backward-input-compute",
    "W": "backward-weight-compute",
}
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_LOADER = re.compile(r"enumerate\(DataLoader\)#")
# Ranges of the profiler and frameworks that wrap or split operations: skipping them loses nothing.
_IGNORED = re.compile(
    r"Optimizer\.zero_grad#|PP:|FSDP::|nccl:|c10d::|PyTorch Profiler|DistributedDataParallel\."
)
_COLLECTIVES = {
    ("dp", "gather"): "params-all-gather",
    ("dp", "scatter"): "grads-reduce-scatter",
    ("dp", "allreduce"): "grads-reduce-scatter",  # DDP's buckets
    ("partial dp", "gather"): "params-all-gather",
    ("partial dp", "scatter"): "grads-reduce-scatter",
    ("embedding", "allreduce"): "embedding-grads-all-reduce",
    ("model", "allreduce"): "optimizer-clip-main-grad",
}
_WITH_CHUNK = {OP_CODES["params-all-gather"], OP_CODES["grads-reduce-scatter"]}
_INNER_AXES = ("tp", "cp", "expert")
_NO_OPERATION = NameMeaning(())
_MAX_COUNTED = 1_000
_MAX_SHOWN_CHARS = 60


class KinetoNames:
    """Operation types of the names in all files, and counts of unknown names."""

    def __init__(self, options: ImportOptions) -> None:
        self._map = NameMap(options, {})
        self._has_patterns = bool(options.patterns)
        self.unknown_collectives: Counter[str] = Counter()
        self.num_inside = 0
        self.num_sums = 0

    def of_file(
        self, where: str, names: Sequence[EventName], place: ParallelPosition
    ) -> list[NameMeaning]:
        """Meaning of each name on this rank; none for names that are no operation.

        Raises:
            InvalidTrace: the rank runs stages of the model that are not those of its place.
        """
        stages = sorted(
            {
                stage
                for name in names
                if isinstance(name, str)
                and (stage := _model_stage(name)) is not None
                and not self._map.meant(name)
            }
        )
        _refuse_other_stages(where, stages, place)
        chunk_of = {stage: chunk for chunk, stage in enumerate(stages)}
        return [
            self._collective(name, place)
            if isinstance(name, KernelCollective)
            else self._annotation(name, chunk_of)
            for name in names
        ]

    def count(self, name: EventName, place: ParallelPosition, times: int) -> None:
        """Count operations of an unknown name."""
        if isinstance(name, str):
            if not _IGNORED.match(name):
                self._map.count_unknown(name, times)
        elif _axis(name, place) in _INNER_AXES:
            self.num_inside += times
        elif len(self.unknown_collectives) < _MAX_COUNTED:
            self.unknown_collectives[_collective_text(name)[:_MAX_SHOWN_CHARS]] += times

    def is_sum(self, name: EventName, place: ParallelPosition) -> bool:
        """Whether it is an all-reduce that is assumed to be of gradients."""
        if isinstance(name, str) or _kind(name.name) != "allreduce" or _axis(name, place) != "dp":
            return False
        return not (self._has_patterns and self._map.meant(_collective_text(name)))

    def missing(self) -> list[MissingData]:
        """Operations that were skipped because of their names."""
        found = self._map.missing("annotations")
        if self.num_inside:
            found.append(
                MissingData(
                    f"parts: {self.num_inside:,} collectives are tensor-, context- or "
                    "expert-parallel",
                    "they are left out: their time is in the computation around them",
                )
            )
        if self.num_sums:
            found.append(
                MissingData(
                    f"sums: {self.num_sums:,} all-reduces over the data-parallel ranks are taken "
                    "for gradients",
                    "sums of losses and norms among them are not told apart: data-parallel "
                    "communication looks as much longer",
                )
            )
        if self.unknown_collectives:
            total = self.unknown_collectives.total()
            shown = ", ".join(
                f"{count:,} of {name!r}" for name, count in self.unknown_collectives.most_common(4)
            )
            found.append(
                MissingData(
                    f"collectives: {total:,} are of a group whose axis is not known, {shown}",
                    "they are left out, their time counts as waiting; name their types with "
                    "--map 'COLLECTIVE GROUP=OPTYPE'",
                )
            )
        return found

    def _annotation(self, name: str, chunk_of: dict[int, int]) -> NameMeaning:
        if found := self._map.meant(name):
            return found
        if action := _PIPELINING.match(name):
            code = OP_CODES[_ACTIONS[action[2]]]
            return NameMeaning((code,), int(action[3]), chunk_of[int(action[1])])
        if _OPTIMIZER.match(name):
            return NameMeaning((OP_CODES["optimizer"],))
        if _LOADER.match(name):
            return NameMeaning((OP_CODES["data-wait"],))
        return _NO_OPERATION

    def _collective(self, collective: KernelCollective, place: ParallelPosition) -> NameMeaning:
        if self._has_patterns and (found := self._map.meant(_collective_text(collective))):
            return found
        axis = _axis(collective, place)
        if collective.name in ("send", "recv"):
            optype = _p2p(collective, place) if axis == "pp" else None
        else:
            optype = _COLLECTIVES.get((axis, _kind(collective.name)))
        if optype is None:
            return _NO_OPERATION
        code = OP_CODES[optype]
        has_one_chunk = code in _WITH_CHUNK and place.sizes.get("vpp_size", 1) == 1
        return NameMeaning((code,), chunk=0 if has_one_chunk else -1)


def _model_stage(name: str) -> int | None:
    action = _PIPELINING.match(name)
    return int(action[1]) if action else None


def _refuse_other_stages(where: str, stages: Sequence[int], place: ParallelPosition) -> None:
    size = place.sizes["pp_size"]
    if [*stages] != [place.stage + chunk * size for chunk in range(len(stages))]:
        shown = ", ".join(map(str, stages[:4]))
        raise InvalidTrace(
            f"{where}: rank {place.rank} runs stages {shown} of the model, and is taken for stage "
            f"{place.stage} of {size}: give --dp and --pp; folded (V) schedules cannot be read"
        )


def _axis(collective: KernelCollective, place: ParallelPosition) -> str:
    """The parallel axis of a collective's group; a lone group has the axis of the whole job."""
    return axis_of(collective.description) or place.only_axis


def _collective_text(collective: KernelCollective) -> str:
    """A collective as patterns and messages name it."""
    return f"{collective.name} {collective.description or collective.group}"


def _kind(name: str) -> str:
    text = name.lower().replace("_", "")
    if "reducescatter" in text:
        return "scatter"
    if "allgather" in text:
        return "gather"
    return "allreduce" if "allreduce" in text else ""


def _p2p(collective: KernelCollective, place: ParallelPosition) -> str | None:
    """The op type of a transfer to or from a neighbouring stage."""
    peer = collective.target if collective.name == "send" else collective.source
    size = place.sizes["pp_size"]
    if peer is None or len(place.stages) != size or place.sizes.get("vpp_size", 1) > 1:
        return None  # under interleaving the last stage sends to the first one: which way?
    # PyTorch names the peer's global rank; a number that is none of the group's is one within it.
    stage = place.stages.index(peer) if peer in place.stages else peer
    if stage == place.stage + 1:
        return "forward-send" if collective.name == "send" else "backward-recv"
    if stage == place.stage - 1:
        return "backward-send" if collective.name == "send" else "forward-recv"
    return None
