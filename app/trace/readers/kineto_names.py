"""What names and collectives in a Kineto file mean, once its rank's place is known."""

import re
from collections import Counter
from collections.abc import Sequence

from app.errors import InvalidTrace
from app.trace.ops import OP_CODES
from app.trace.readers.foreign import Lack, Options
from app.trace.readers.kineto_file import Collective, Named
from app.trace.readers.kineto_groups import RankPlace, axis_of
from app.trace.readers.name_map import Meant, NameMap

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
# Of the profiler or its frameworks, around or inside of what is wanted: no loss.
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
_INSIDE = ("tp", "cp", "expert")
_NOTHING = Meant(())
_MAX_COUNTED = 1_000
_LONGEST = 60


class KinetoNames:
    """The meaning of the names of all files, and how many operations have none."""

    def __init__(self, options: Options) -> None:
        self._map = NameMap(options, {})
        self._has_patterns = bool(options.patterns)
        self.unknown_collectives: Counter[str] = Counter()
        self.num_inside = 0
        self.num_sums = 0

    def of_file(self, where: str, names: Sequence[Named], place: RankPlace) -> list[Meant]:
        """What each name stands for on this rank; nothing for what is no operation.

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
            if isinstance(name, Collective)
            else self._annotation(name, chunk_of)
            for name in names
        ]

    def count(self, name: Named, place: RankPlace, times: int) -> None:
        """So many of a name that stands for nothing."""
        if isinstance(name, str):
            if not _IGNORED.match(name):
                self._map.count_unknown(name, times)
        elif _axis(name, place) in _INSIDE:
            self.num_inside += times
        elif len(self.unknown_collectives) < _MAX_COUNTED:
            self.unknown_collectives[_words(name)[:_LONGEST]] += times

    def is_sum(self, name: Named, place: RankPlace) -> bool:
        """Whether it is taken for gradients, and may as well be the sum of something else."""
        if isinstance(name, str) or _kind(name.name) != "allreduce" or _axis(name, place) != "dp":
            return False
        return not (self._has_patterns and self._map.meant(_words(name)))

    def lacks(self) -> list[Lack]:
        """What was left out because of its name."""
        found = self._map.lacks("annotations")
        if self.num_inside:
            found.append(
                Lack(
                    f"parts: {self.num_inside:,} collectives are tensor-, context- or "
                    "expert-parallel",
                    "they are left out: their time is in the computation around them",
                )
            )
        if self.num_sums:
            found.append(
                Lack(
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
                Lack(
                    f"collectives: {total:,} are of a group whose axis is not known, {shown}",
                    "they are left out, their time counts as waiting; name their types with "
                    "--map 'COLLECTIVE GROUP=OPTYPE'",
                )
            )
        return found

    def _annotation(self, name: str, chunk_of: dict[int, int]) -> Meant:
        if found := self._map.meant(name):
            return found
        if action := _PIPELINING.match(name):
            code = OP_CODES[_ACTIONS[action[2]]]
            return Meant((code,), int(action[3]), chunk_of[int(action[1])])
        if _OPTIMIZER.match(name):
            return Meant((OP_CODES["optimizer"],))
        if _LOADER.match(name):
            return Meant((OP_CODES["data-wait"],))
        return _NOTHING

    def _collective(self, collective: Collective, place: RankPlace) -> Meant:
        if self._has_patterns and (found := self._map.meant(_words(collective))):
            return found
        axis = _axis(collective, place)
        if collective.name in ("send", "recv"):
            optype = _p2p(collective, place) if axis == "pp" else None
        else:
            optype = _COLLECTIVES.get((axis, _kind(collective.name)))
        if optype is None:
            return _NOTHING
        code = OP_CODES[optype]
        has_one_chunk = code in _WITH_CHUNK and place.sizes.get("vpp_size", 1) == 1
        return Meant((code,), chunk=0 if has_one_chunk else -1)


def _model_stage(name: str) -> int | None:
    action = _PIPELINING.match(name)
    return int(action[1]) if action else None


def _refuse_other_stages(where: str, stages: Sequence[int], place: RankPlace) -> None:
    size = place.sizes["pp_size"]
    if [*stages] != [place.stage + chunk * size for chunk in range(len(stages))]:
        shown = ", ".join(map(str, stages[:4]))
        raise InvalidTrace(
            f"{where}: rank {place.rank} runs stages {shown} of the model, and is taken for stage "
            f"{place.stage} of {size}: give --dp and --pp; folded (V) schedules cannot be read"
        )


def _axis(collective: Collective, place: RankPlace) -> str:
    """The axis of its group; of the only group there is it is that of the whole job."""
    return axis_of(collective.description) or place.only_axis


def _words(collective: Collective) -> str:
    """A collective as patterns and messages name it."""
    return f"{collective.name} {collective.description or collective.group}"


def _kind(name: str) -> str:
    text = name.lower().replace("_", "")
    if "reducescatter" in text:
        return "scatter"
    if "allgather" in text:
        return "gather"
    return "allreduce" if "allreduce" in text else ""


def _p2p(collective: Collective, place: RankPlace) -> str | None:
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
