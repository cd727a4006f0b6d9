"""Plans of simulated jobs of every structure: schedules, parameters, gradients, custom types."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.trace.job import Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from tests.reference_ops import Key
from tests.step_plans import Plan

FORWARD, BACKWARD, INPUT, WEIGHT = "forward", "backward", "backward-input", "backward-weight"
ONWARD = {"forward": 1, "backward": -1}


@dataclass(frozen=True)
class Work:
    """One computation of a stage."""

    kind: str
    chunk: int
    microbatch: int

    @property
    def direction(self) -> str:
        return "" if self.kind == WEIGHT else self.kind.split("-")[0]


Order = list[Work]
Extras = Callable[["StagePlan", Work, Key], None]  # further operations added with each computation


@dataclass(frozen=True)
class Shape:
    """Operations of a job in a step, without their times."""

    sizes: Parallelism
    order: Callable[["Shape", int], Order]
    num_microbatches: int = 2
    gradients: str = "at the end"  # "overlapped", "buckets", "reduced buckets", "by layer"
    gathers: bool = True
    directions_with_ids: tuple[str, ...] = ()
    with_no_ops: bool = False  # interleaved, every computation may have a recv and a send
    with_first_recv: bool = True  # of these, also the first on stage 0, which has no sender
    with_strays: bool = False  # a forward-send before the first forward-compute, a recv in the last
    with_gc: bool = False
    with_layernorm: bool = False
    with_embedding: bool = False
    with_clip: bool = True
    num_layers: int = 1  # computations of a micro-batch on a stage
    layers_are_chunks: bool = False
    scatters_apart: bool = False  # gathers and scatters on streams of their own
    types: OpTypes = BUILT_IN
    extras: Extras | None = None


def gpipe(shape: Shape, stage: int) -> Order:
    """All forwards, then all backwards."""
    return _pipelined(shape, ahead=shape.num_microbatches * shape.sizes.vpp_size)


def one_f_one_b(shape: Shape, stage: int) -> Order:
    """A forward and a backward in turns once the pipeline is filled; interleaved with chunks."""
    ahead = shape.sizes.pp_size - stage - 1
    if shape.sizes.vpp_size > 1:
        ahead = 2 * ahead + (shape.sizes.vpp_size - 1) * shape.sizes.pp_size
    return _pipelined(shape, ahead)


def _pipelined(shape: Shape, ahead: int) -> Order:
    chunks = range(shape.sizes.vpp_size)
    forward = [Work(FORWARD, c, m) for c in chunks for m in range(shape.num_microbatches)]
    backward = [
        Work(BACKWARD, c, m) for c in reversed(chunks) for m in range(shape.num_microbatches)
    ]
    order = forward[:ahead]
    for position, work in enumerate(backward):
        order += [*forward[ahead + position : ahead + position + 1], work]
    return order


def zero_bubble(shape: Shape, stage: int) -> Order:
    """ZB-H1: backwards split, their weights as many micro-batches later as the stage is deep."""
    return _split(shape, stage, whole=())


def partly_zero_bubble(shape: Shape, stage: int) -> Order:
    """The same, with the first micro-batch's backward in one piece."""
    return _split(shape, stage, whole=(0,))


def _split(shape: Shape, stage: int, whole: tuple[int, ...]) -> Order:
    order: Order = []
    owed: Order = []
    for work in one_f_one_b(shape, stage):
        if work.kind == BACKWARD and work.microbatch not in whole:
            order.append(replace(work, kind=INPUT))
            owed.append(replace(work, kind=WEIGHT))
            if len(owed) > stage:
                order.append(owed.pop(0))
        else:
            order.append(work)
    return order + owed


def each_stage_its_own(shape: Shape, stage: int) -> Order:
    """GPipe, the micro-batches in another order on each stage."""
    chance = random.Random(1000 * shape.num_microbatches + stage)
    one, other = (
        chance.sample(range(shape.num_microbatches), shape.num_microbatches) for _ in "fb"
    )
    return [Work(FORWARD, 0, m) for m in one] + [Work(BACKWARD, 0, m) for m in other]


def recomputing(shape: Shape, stage: int) -> Order:
    """1F1B, each forward done once more before its backward."""
    order: Order = []
    for work in one_f_one_b(shape, stage):
        order += [replace(work, kind=FORWARD), work] if work.kind == BACKWARD else [work]
    return order


def layer_by_layer(shape: Shape, stage: int) -> Order:
    """Without a pipeline: through all layers and back, micro-batch by micro-batch."""
    order = []
    for m in range(shape.num_microbatches):
        order += [Work(FORWARD, layer, m) for layer in range(shape.num_layers)]
        order += [Work(BACKWARD, layer, m) for layer in reversed(range(shape.num_layers))]
    return order


Peers = dict[tuple[object, ...], list[Key]]  # groups that meet, sends and recvs


@dataclass
class StagePlan:
    """One stage's part of a plan, while it is made."""

    plan: Plan
    shape: Shape
    stage: int
    chance: random.Random
    peers: Peers
    order: Order = field(init=False)
    computed: list[tuple[Work, Key]] = field(default_factory=list)
    waiting: list[Key] = field(default_factory=list)  # dependencies of the next computation
    loose: list[Key] = field(default_factory=list)  # dependencies of the optimizer only
    gathers: dict[int, Key] = field(default_factory=dict)
    buckets: dict[str, Key] = field(default_factory=dict)  # the last of each type

    def __post_init__(self) -> None:
        self.order = self.shape.order(self.shape, self.stage)

    def add(self, optype: str, **how) -> Key:
        return self.plan.add(optype, self.stage, **how)

    def share(self) -> float:
        return self.chance.choice([0.25, 0.5, 0.75])

    def mc(self, work: Work) -> int:
        return work.chunk if self.shape.num_layers == 1 or self.shape.layers_are_chunks else 0

    def before(self, direction: str) -> list[Key]:
        return [key for work, key in self.computed if work.direction == direction]

    def is_last_backward(self, work: Work) -> bool:
        of_chunk = [w for w in self.order if w.kind != FORWARD and self.mc(w) == self.mc(work)]
        return work is of_chunk[-1]


def plan(shape: Shape, chance: random.Random) -> Plan:
    """The whole step of a replica."""
    found, peers = Plan(shape.sizes, shape.types), dict[tuple[object, ...], list[Key]]()
    parts = [StagePlan(found, shape, p, chance, peers) for p in range(shape.sizes.pp_size)]
    for part in parts:
        _begin(part)
        for work in part.order:
            _work(part, work)
        _sends(part)
        _end_of_step(part)
    found.found.groups += [tuple(keys) for keys in peers.values() if len(keys) == 2]
    found.meet_over_stages()
    return found


def _begin(part: StagePlan) -> None:
    shape = part.shape
    if shape.with_strays and shape.sizes.pp_size > 1:
        part.waiting.append(part.add("forward-send"))
        part.plan.strays.update(part.waiting)
    if shape.sizes.is_data_parallel and shape.gradients == "by layer":
        part.waiting.append(part.add("params-all-gather", mc=part.mc(part.order[0])))
    elif shape.sizes.is_data_parallel and shape.gathers:
        for chunk in range(shape.sizes.vpp_size):
            part.gathers[chunk] = part.add("params-all-gather", mc=chunk)


def _work(part: StagePlan, work: Work) -> None:
    after = [*part.waiting, *_receive(part, work)]
    if work.kind == FORWARD and work.chunk in part.gathers:
        after.append(part.gathers.pop(work.chunk))
    key = part.add(f"{work.kind}-compute", after=after, mc=part.mc(work), mb_id=work.microbatch)
    part.computed.append((work, key))
    part.waiting = []
    _exchange(part, work, key)
    if part.shape.extras:
        part.shape.extras(part, work, key)


def _model_chunk(part: StagePlan, work: Work) -> int:
    return work.chunk * part.shape.sizes.pp_size + part.stage


def _ids(part: StagePlan, work: Work) -> dict[str, int]:
    has_ids = work.direction in part.shape.directions_with_ids
    return {"mc": work.chunk, "mb_id": work.microbatch} if has_ids else {}


def _is_sent(part: StagePlan, work: Work, towards: int) -> bool:
    sizes = part.shape.sizes
    if sizes.pp_size == 1 or work.kind == WEIGHT:
        return False
    is_inside = 0 <= _model_chunk(part, work) + towards < sizes.pp_size * sizes.vpp_size
    return is_inside or part.shape.with_no_ops


def _receive(part: StagePlan, work: Work) -> list[Key]:
    if work.kind == WEIGHT or not _is_sent(part, work, -ONWARD[work.direction]):
        return []
    if work in [done for done, _ in part.computed]:
        return []
    is_first = part.stage == 0 and not part.computed
    if is_first and not part.shape.with_first_recv:
        return []
    after = part.before(work.direction)[-1:]
    if work.direction == BACKWARD and not after:
        after = part.before(FORWARD)[-2:-1]  # recvs are posted one computation ahead
    key = part.add(f"{work.direction}-recv", after=after, **_ids(part, work))
    meeting = work.direction, work.microbatch, _model_chunk(part, work)
    part.peers.setdefault(meeting, []).append(key)
    return [key]


def _sends(part: StagePlan) -> None:
    """In the order in which the next stage wants them."""
    for direction, onward in ONWARD.items():
        sent = [each for each in part.computed if each[0].direction == direction]
        if part.shape.order is each_stage_its_own:
            there = part.shape.order(part.shape, (part.stage + onward) % part.shape.sizes.pp_size)
            wanted = [work.microbatch for work in there if work.direction == direction]
            sent.sort(key=lambda each: wanted.index(each[0].microbatch))
        first = dict(reversed(sent))
        for work, computed in sent:
            if _is_sent(part, work, onward) and computed is first[work]:
                key = part.add(f"{direction}-send", after=[computed], **_ids(part, work))
                meeting = direction, work.microbatch, _model_chunk(part, work) + onward
                part.peers.setdefault(meeting, []).append(key)


def _exchange(part: StagePlan, work: Work, key: Key) -> None:
    """Parameters and gradients beside the computation."""
    gradients, mc = part.shape.gradients, part.mc(work)
    if not part.shape.sizes.is_data_parallel:
        return
    if gradients == "by layer":
        _layer(part, work, key)
    elif work.kind == FORWARD or not part.is_last_backward(work):
        return
    elif gradients == "overlapped":
        part.buckets["grads-reduce-scatter"] = part.add("grads-reduce-scatter", after=[key], mc=mc)
    elif gradients == "buckets":
        _buckets(part, key, "grads-reduce-scatter", mc=mc)
    elif gradients == "reduced buckets":
        mc = part.chance.choice([-1, mc])
        _buckets(part, key, "separate-grads-all-reduce", mc=mc, stream="buckets")


def _buckets(part: StagePlan, key: Key, optype: str, **how) -> None:
    for share in sorted({part.share() for _ in range(part.chance.randint(1, 2))}):
        part.add(optype, within=(key, share), **how)
    part.buckets[optype] = part.add(optype, after=[key], **how)


def _layer(part: StagePlan, work: Work, key: Key) -> None:
    """Gather the next layer's parameters during this computation; then scatter its gradients."""
    for upcoming in part.order[len(part.computed) :][:1]:
        within = None if part.chance.random() < 0.2 else (key, part.share())
        mc = part.mc(upcoming)
        part.waiting.append(part.add("params-all-gather", within=within, mc=mc))
    if work.kind != FORWARD:
        stream = "scatters" if part.shape.scatters_apart else None
        optype = "grads-reduce-scatter"
        part.buckets[optype] = part.add(optype, after=[key], mc=part.mc(work), stream=stream)


def _end_of_step(part: StagePlan) -> None:
    shape = part.shape
    if shape.with_strays and shape.sizes.pp_size > 1:
        last = part.before(FORWARD)[-1]
        part.plan.strays.add(part.add("forward-recv", within=(last, 0.5)))
    after = [part.plan.last_on[part.stage, "compute"], *part.waiting]
    for optype, mc in _chain(part):
        if optype in ("optimizer-clip-main-grad", "optimizer") or (
            shape.gradients == "overlapped" and optype != "gc"
        ):
            after += [*part.buckets.values()]
            part.buckets = {}
        after += part.loose if optype == "optimizer" else []
        after = [part.add(optype, after=after, mc=mc)]


def _chain(part: StagePlan) -> list[tuple[str, int]]:
    shape, names = part.shape, []
    names += [("gc", -1)] if shape.with_gc else []
    names += [("layernorm-grads-all-reduce", -1)] if shape.with_layernorm else []
    if shape.with_embedding and part.stage in (0, shape.sizes.pp_size - 1):
        names.append(("embedding-grads-all-reduce", -1))
    if shape.sizes.is_data_parallel and shape.gradients == "overlapped":
        names.append(("separate-grads-all-reduce", -1))
    if shape.sizes.is_data_parallel and shape.gradients == "at the end":
        names += [("grads-reduce-scatter", chunk) for chunk in range(shape.sizes.vpp_size)]
    names += [("optimizer-clip-main-grad", -1)] if shape.with_clip else []
    return [*names, ("optimizer", -1)]
