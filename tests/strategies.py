"""Random small training jobs whose records obey the what-if model's section 3."""

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from app.trace.job import Parallelism
from app.trace.window import Window
from tests import factories
from tests.factories import Row
from tests.reference import Dependencies, Key, Op, dependencies, meetings_in_order

# All times are multiples of this, so that sums are exact and equal times stay equal.
TICK_S = 2.0**-16

# Long enough for a stray send or recv to be told from one that is used (rule 4: 50 us).
CLEARLY_S = 8 * TICK_S

_STRAY = -2  # stands for the chunk in plans
_WITH_CHUNK = {
    "forward-compute",
    "backward-compute",
    "params-all-gather",
    "grads-reduce-scatter",
}

Work = tuple[str, int, int]  # direction, chunk, micro-batch


@dataclass(frozen=True)
class Shape:
    """What a job does in a step, whatever time it takes."""

    sizes: Parallelism
    num_microbatches: int
    all_forward_first: bool  # GPipe; otherwise 1F1B
    overlapped: bool
    with_gc: bool
    with_embedding: bool
    with_layernorm: bool
    with_first_recv: bool  # interleaved, stage 0 may record one although nobody sends to it
    with_strays: bool  # a forward-send before the first forward-compute, a recv after the last


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Jobs of up to 3 x 3 workers."""
    pp_size = draw(st.integers(1, 3))
    vpp_size = draw(st.integers(1, 2)) if pp_size > 1 else 1
    # Interleaving deals micro-batches out in rounds of one per stage.
    microbatches = st.just(pp_size) if vpp_size > 1 else st.integers(1, 4)
    sizes = Parallelism(
        draw(st.integers(1, 3)), pp_size, 1, vpp_size, draw(st.sampled_from([1, 1, 2]))
    )
    return Shape(sizes, draw(microbatches), *(draw(st.booleans()) for _ in range(7)))


@st.composite
def windows(draw: st.DrawFn, max_steps: int = 2) -> Window:
    """Windows of random jobs: random durations and launch delays, clocks that disagree."""
    shape = draw(shapes())
    num_steps = draw(st.integers(1, max_steps))
    largest_skew_s = draw(st.sampled_from([0.0, 0.005, 0.050]))
    return record(shape, num_steps, largest_skew_s, random.Random(draw(st.integers(0, 2**32))))


def record(shape: Shape, num_steps: int, largest_skew_s: float, chance: random.Random) -> Window:
    """What the job's workers would have recorded in some steps."""
    plan = factories.numbered(
        row for stage in range(shape.sizes.pp_size) for row in _plan(shape, stage)
    )
    found = dependencies([_op(row) for row in plan], shape.sizes)
    rows: list[Row] = []
    for step in range(10, 10 + num_steps):
        rows += _run(shape, plan, found, step, largest_skew_s, chance)
    chance.shuffle(rows)
    sizes = shape.sizes
    return factories.window(
        rows,
        dp_size=sizes.dp_size,
        pp_size=sizes.pp_size,
        vpp_size=sizes.vpp_size,
        dsp_size=sizes.dsp_size,
    )


def schedule(shape: Shape, stage: int) -> list[Work]:
    """Order of the stage's computes, as Megatron runs them."""
    pp_size, vpp_size = shape.sizes.pp_size, shape.sizes.vpp_size
    chunks = range(vpp_size)
    forward = [("forward", c, m) for c in chunks for m in range(shape.num_microbatches)]
    backward = [("backward", c, m) for c in reversed(chunks) for m in range(shape.num_microbatches)]
    ahead = pp_size - stage - 1
    if vpp_size > 1:
        ahead = 2 * ahead + (vpp_size - 1) * pp_size
    ahead = len(forward) if shape.all_forward_first else min(ahead, len(forward))
    order = forward[:ahead]
    for position, work in enumerate(backward):
        order += [*forward[ahead + position : ahead + position + 1], work]
    return order


def _plan(shape: Shape, stage: int) -> list[Row]:
    """The stage's operations one second apart: their order, and nothing else."""
    names = _gathers(shape)
    strays = shape.with_strays and shape.sizes.pp_size > 1
    names += [("forward-send", _STRAY)] if strays else []
    order = schedule(shape, stage)
    last = {work[:2]: position for position, work in enumerate(order)}
    for position, work in enumerate(order):
        names += _compute_and_p2p(shape, stage, work, is_first=position == 0)
        is_last_backward = work[0] == "backward" and last[work[:2]] == position
        if shape.overlapped and shape.sizes.is_data_parallel and is_last_backward:
            names.append(("grads-reduce-scatter", work[1]))
    names += [("forward-recv", _STRAY)] if strays else []
    names += _end_of_step(shape, stage)
    return [
        Row(name, float(position), 0.5, stage=stage, mc=chunk)
        for position, (name, chunk) in enumerate(names)
    ]


def _gathers(shape: Shape) -> list[tuple[str, int]]:
    chunks = range(shape.sizes.vpp_size) if shape.sizes.is_data_parallel else ()
    return [("params-all-gather", chunk) for chunk in chunks]


def _compute_and_p2p(
    shape: Shape, stage: int, work: Work, *, is_first: bool
) -> list[tuple[str, int]]:
    """A compute after its recv and before its send, where it has them."""
    direction, chunk, _ = work
    sizes = shape.sizes
    compute = (f"{direction}-compute", chunk)
    if sizes.pp_size == 1:
        return [compute]
    model_chunk = chunk * sizes.pp_size + stage
    at_start, at_end = model_chunk == 0, model_chunk == sizes.vpp_size * sizes.pp_size - 1
    source, sink = (at_start, at_end) if direction == "forward" else (at_end, at_start)
    # Interleaved, every compute has both; those over the model's ends reach nobody.
    every = sizes.vpp_size > 1
    names = []
    if (not source or every) and (shape.with_first_recv or not (is_first and stage == 0)):
        names.append((f"{direction}-recv", chunk))
    names.append(compute)
    if not sink or every:
        names.append((f"{direction}-send", chunk))
    return names


def _end_of_step(shape: Shape, stage: int) -> list[tuple[str, int]]:
    names = [("gc", -1)] if shape.with_gc else []
    names += [("layernorm-grads-all-reduce", -1)] if shape.with_layernorm else []
    if shape.with_embedding and stage in (0, shape.sizes.pp_size - 1):
        names.append(("embedding-grads-all-reduce", -1))
    if shape.sizes.is_data_parallel:
        chunks = range(shape.sizes.vpp_size)
        scatters = [("grads-reduce-scatter", chunk) for chunk in chunks]
        names += [("separate-grads-all-reduce", -1)] if shape.overlapped else scatters
    return [*names, ("optimizer-clip-main-grad", -1), ("optimizer", -1)]


def _op(row: Row) -> Op:
    assert row.seq_id is not None
    key = Key(row.stage, row.optype, row.seq_id)
    return Op(row.step, row.dp_rank, key, 0, row.mc or 0, row.start_s, row.duration_s)


def _run(
    shape: Shape,
    plan: list[Row],
    found: Dependencies,
    step: int,
    largest_skew_s: float,
    chance: random.Random,
) -> list[Row]:
    """One step as it would have been recorded, on clocks that differ from worker to worker."""
    sizes, row_of = shape.sizes, {_op(row).key: row for row in plan}
    strays = {key for key, row in row_of.items() if row.mc == _STRAY}
    last_forward = {row.stage: _op(row).key for row in plan if row.optype == "forward-compute"}
    start_s: dict = {}
    end_s: dict = {}
    for nodes in meetings_in_order(found, sizes.dp_size):
        for dp_rank, key in nodes:
            ready_s = max((end_s[dp_rank, p] for p in found.waits_for[key]), default=0.0)
            delay_s = TICK_S if key in strays else _delay_s(chance)
            start_s[dp_rank, key] = ready_s + delay_s
        met_s = max(start_s[node] for node in nodes)
        for node in nodes:
            end_s[node] = met_s + (0.0 if node[1] in strays else _own_s(node[1], chance))
    for dp_rank, key in start_s:
        if key in strays and key.optype == "forward-recv":
            start_s[dp_rank, key] = start_s[dp_rank, last_forward[key.stage]] + CLEARLY_S
            end_s[dp_rank, key] = start_s[dp_rank, key] + _own_s(key, chance)
    largest = round(largest_skew_s / TICK_S)
    places = [
        (dp_rank, stage) for dp_rank in range(sizes.dp_size) for stage in range(sizes.pp_size)
    ]
    skew_s = {place: chance.randint(-largest, largest) * TICK_S for place in places}
    return [
        row_of[key].on(
            dp_rank=dp_rank,
            step=step,
            mc=row_of[key].mc if key.optype in _WITH_CHUNK else -1,
            start_s=start_s[dp_rank, key] + skew_s[dp_rank, key.stage],
            duration_s=end_s[dp_rank, key] - start_s[dp_rank, key],
        )
        for dp_rank, key in start_s
    ]


def _delay_s(chance: random.Random) -> float:
    """Never 0, so that operations of one stream start one after the other."""
    return chance.choice([1, 1, 2, 1000, 30_000]) * TICK_S


def _own_s(key: Key, chance: random.Random) -> float:
    own_s = chance.choice([0, 1, chance.randint(0, 20_000), chance.randint(0, 200_000)]) * TICK_S
    if key.optype == "optimizer":
        return own_s + 1.0  # no clock is so wrong that a step would take no time
    return max(own_s, CLEARLY_S) if key.optype == "forward-compute" else own_s
