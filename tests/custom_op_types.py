"""Custom operation types of every kind, axis and stream, and jobs that use them."""

from app.trace.ops import parse_op_types
from tests.job_structures import BACKWARD, FORWARD, StagePlan, Work
from tests.reference_ops import Key

OWN_TYPES = parse_op_types(
    [
        {"name": "loss", "kind": "compute"},
        {"name": "experts", "kind": "collective", "axis": "ep", "stream": "compute"},
        {"name": "tensors", "kind": "collective", "axis": "tp", "stream": "compute"},
        {"name": "replica-barrier", "kind": "collective", "axis": "dp", "stream": "compute"},
        {"name": "stage-barrier", "kind": "collective", "axis": "pp", "stream": "compute"},
        {"name": "offload", "kind": "compute", "stream": "copies"},
        {"name": "dispatch", "kind": "collective", "axis": "ep", "stream": "tokens"},
        {"name": "combine", "kind": "collective", "axis": "ep", "stream": "tokens"},
        {"name": "tensor-gather", "kind": "collective", "axis": "tp"},
        {"name": "replica-sync", "kind": "collective", "axis": "dp"},
        {"name": "stage-sync", "kind": "collective", "axis": "pp"},
        {"name": "heartbeat", "kind": "collective", "axis": "none"},
        {"name": "next-send", "kind": "p2p", "pairs_with": "next-recv", "towards": "next"},
        {"name": "next-recv", "kind": "p2p"},
        {"name": "back-send", "kind": "p2p", "pairs_with": "back-recv", "towards": "previous"},
        {"name": "back-recv", "kind": "p2p", "stream": "back"},
    ]
)
COMPUTING = ["loss", "experts", "tensors", "replica-barrier"]
ASIDE = ["offload", "dispatch", "combine", "tensor-gather", "replica-sync", "heartbeat"]


def between_computations(part: StagePlan, work: Work, key: Key) -> None:
    """Custom types between the computations, sometimes after the last one."""
    if part.chance.random() < 0.6:
        part.add(part.chance.choice(COMPUTING), after=part.waiting)
    if len(part.computed) == len(part.order) and part.chance.random() < 0.8:
        part.add("stage-barrier")  # meets the stages that have one


def on_streams_of_their_own(part: StagePlan, work: Work, key: Key) -> None:
    """Custom types beside the computation; later operations wait for some of them."""
    if len(part.computed) == 1:
        part.loose.append(part.add("stage-sync", within=(key, part.share())))
    for _ in range(part.chance.randint(0, 2)):
        own = _launched(part, part.chance.choice(ASIDE), key)
        part.chance.choice([part.waiting, part.waiting, part.loose]).append(own)


def on_every_stream(part: StagePlan, work: Work, key: Key) -> None:
    """Custom types between computations and on other streams."""
    between_computations(part, work, key)
    on_streams_of_their_own(part, work, key)


def _launched(part: StagePlan, optype: str, key: Key, **ids: int) -> Key:
    """Add an operation launched within a computation, or at its end."""
    if part.chance.random() < 0.7:
        return part.add(optype, within=(key, part.share()), **ids)
    return part.add(optype, after=[key], **ids)


def between_stages(part: StagePlan, work: Work, key: Key) -> None:
    """Custom sends after each pass, received in the same pass on the next stage."""
    _between_stages(part, work, key, {})


def between_stages_with_ids(part: StagePlan, work: Work, key: Key) -> None:
    """The same, each with micro-batch and chunk."""
    _between_stages(part, work, key, {"mb_id": work.microbatch, "mc": work.chunk})


def _between_stages(part: StagePlan, work: Work, key: Key, ids: dict[str, int]) -> None:
    last = part.shape.sizes.pp_size - 1
    name, onward, first = ("next", 1, 0) if work.kind == FORWARD else ("back", -1, last)
    if work.kind not in (FORWARD, BACKWARD):
        return
    if part.stage != first:
        received = _launched(part, f"{name}-recv", key, **ids)
        part.waiting.append(received)
        part.peers.setdefault((name, work, part.stage), []).append(received)
    sent = part.add(f"{name}-send", after=[key], **ids)  # without a peer at the end of the pipeline
    part.peers.setdefault((name, work, part.stage + onward), []).append(sent)
