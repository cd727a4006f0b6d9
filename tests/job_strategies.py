"""Random small training jobs of every structure, as recorded by their workers."""

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from app.trace.job import Parallelism
from app.trace.window import Window
from tests.custom_op_types import (
    OWN_TYPES,
    between_computations,
    between_stages,
    between_stages_with_ids,
    on_every_stream,
    on_streams_of_their_own,
)
from tests.job_structures import (
    Shape,
    each_stage_its_own,
    gpipe,
    layer_by_layer,
    one_f_one_b,
    partly_zero_bubble,
    plan,
    recomputing,
    zero_bubble,
)
from tests.step_plans import Steady, Times, Unsteady, record

BOTH = ("forward", "backward")
Structure = Callable[[random.Random], Shape]


def _sizes(chance: random.Random, *, pp_size: int, vpp_size: int = 1) -> Parallelism:
    dp_size = chance.randint(1, 3 if vpp_size < 3 else 2)
    return Parallelism(dp_size, pp_size, 1, vpp_size, chance.choice([1, 1, 2]))


def _traits(chance: random.Random) -> dict:
    names = ("with_gc", "with_layernorm", "with_embedding")
    return {name: chance.random() < 0.5 for name in names} | {"with_clip": chance.random() < 0.8}


def published(chance: random.Random) -> Shape:
    """Jobs that the published analyser reads: sends and receives by position."""
    pp_size = chance.randint(1, 3)
    vpp_size = chance.randint(1, 2) if pp_size > 1 else 1
    order = chance.choice([gpipe, one_f_one_b])
    return Shape(
        _sizes(chance, pp_size=pp_size, vpp_size=vpp_size),
        order,
        # Interleaving deals micro-batches out in rounds of one per stage.
        pp_size if vpp_size > 1 else chance.randint(1, 4),
        gradients=chance.choice(["at the end", "overlapped"]),
        with_no_ops=vpp_size > 1,
        with_first_recv=vpp_size == 1 or chance.random() < 0.5,
        with_strays=chance.random() < 0.5,
        **_traits(chance) | {"with_clip": True},
    )


def gpipe_with_ids(chance: random.Random) -> Shape:
    """All forwards first; each stage in an order of its own, so that no position tells the peer."""
    sizes = _sizes(chance, pp_size=chance.randint(2, 3))
    traits = {"directions_with_ids": BOTH, **_traits(chance)}
    return Shape(sizes, each_stage_its_own, chance.randint(2, 4), **traits)


def one_f_one_b_with_ids(chance: random.Random) -> Shape:
    """1F1B, with the ids of one or both directions, or with forwards done twice."""
    order = chance.choice([one_f_one_b, one_f_one_b, recomputing])
    directions = BOTH if order is recomputing else chance.choice([BOTH, BOTH[:1], BOTH[1:]])
    sizes = _sizes(chance, pp_size=chance.randint(2, 3))
    traits = {"directions_with_ids": directions, **_traits(chance)}
    return Shape(sizes, order, chance.randint(1, 4), **traits)


def interleaved(chance: random.Random) -> Shape:
    """Two to four chunks a stage, with ids or by position."""
    pp_size, vpp_size = chance.choice([(2, 2), (2, 3), (2, 4), (3, 2)])
    with_ids = chance.random() < 0.5
    return Shape(
        _sizes(chance, pp_size=pp_size, vpp_size=vpp_size),
        chance.choice([one_f_one_b, one_f_one_b, gpipe]),
        pp_size,
        gradients=chance.choice(["at the end", "overlapped", "buckets"]),
        directions_with_ids=BOTH if with_ids else (),
        with_no_ops=not with_ids or chance.random() < 0.5,
        with_first_recv=with_ids or chance.random() < 0.5,
        **_traits(chance),
    )


def split_backward(chance: random.Random) -> Shape:
    """Zero-bubble: ZB-H1, all micro-batches or all but one."""
    directions = chance.choice([BOTH, ()])
    order = chance.choice([zero_bubble, partly_zero_bubble])
    gradients = chance.choice(["at the end", "overlapped", "buckets", "reduced buckets"])
    sizes = _sizes(chance, pp_size=chance.randint(1, 3))
    traits = {"directions_with_ids": directions, "gradients": gradients, **_traits(chance)}
    return Shape(sizes, order, chance.randint(1, 4), **traits)


def gradient_accumulation(chance: random.Random) -> Shape:
    """No pipeline; a step of several micro-batches, gradients exchanged in the end."""
    sizes = _sizes(chance, pp_size=1)
    gradients = chance.choice(["at the end", "buckets", "reduced buckets"])
    traits = {"gradients": gradients, "gathers": chance.random() < 0.5, **_traits(chance)}
    return Shape(sizes, one_f_one_b, chance.randint(1, 5), **traits)


def buckets(chance: random.Random) -> Shape:
    """DDP: gradients reduced in buckets while the last backward of a chunk runs."""
    pp_size = chance.randint(1, 3)
    vpp_size = chance.randint(1, 2) if pp_size > 1 else 1
    return Shape(
        replace(_sizes(chance, pp_size=pp_size, vpp_size=vpp_size), dsp_size=2),
        one_f_one_b,
        pp_size if vpp_size > 1 else chance.randint(1, 3),
        gradients=chance.choice(["buckets", "reduced buckets"]),
        gathers=chance.random() < 0.5,
        directions_with_ids=BOTH,
        **_traits(chance),
    )


def fully_sharded(chance: random.Random) -> Shape:
    """FSDP: every layer's parameters gathered before, and its gradients scattered after it."""
    num_layers, are_chunks = chance.randint(2, 4), chance.random() < 0.5
    sizes = Parallelism(chance.randint(1, 3), 1, 1, num_layers if are_chunks else 1, 2)
    return Shape(
        sizes,
        layer_by_layer,
        chance.randint(1, 2),
        gradients="by layer",
        num_layers=num_layers,
        layers_are_chunks=are_chunks,
        scatters_apart=chance.random() < 0.5,
        **_traits(chance),
    )


def fully_sharded_stages(chance: random.Random) -> Shape:
    """The same in a pipeline: a stage's parameters gathered for each of its computations."""
    pp_size, vpp_size = chance.choice([(2, 1), (3, 1), (2, 2)])
    return Shape(
        replace(_sizes(chance, pp_size=pp_size, vpp_size=vpp_size), dsp_size=2),
        chance.choice([one_f_one_b, gpipe]),
        pp_size if vpp_size > 1 else chance.randint(2, 3),
        gradients="by layer",
        directions_with_ids=BOTH,
        scatters_apart=chance.random() < 0.5,
        **_traits(chance),
    )


def _own(chance: random.Random, **how) -> Shape:
    dp_size, ep_size = chance.choice([(1, 1), (2, 1), (2, 2), (4, 2)])
    pp_size = chance.choice([1, 2, 2, 3] if dp_size < 4 else [1, 2])
    vpp_size = chance.choice([1, 1, 2]) if pp_size == 2 else 1
    gradients = chance.choice(["at the end", "at the end", "overlapped", "buckets"])
    return Shape(
        Parallelism(dp_size, pp_size, 1, vpp_size, 1, ep_size),
        one_f_one_b,
        pp_size if vpp_size > 1 else chance.randint(1, 3),
        gradients=gradients,
        directions_with_ids=BOTH,
        types=OWN_TYPES,
        **how,
        **_traits(chance),
    )


def own_computations(chance: random.Random) -> Shape:
    """Custom types between computations."""
    return _own(chance, extras=between_computations)


def own_streams(chance: random.Random) -> Shape:
    """Custom types on other streams, meeting no peer, a block, all replicas or all stages."""
    return _own(chance, extras=chance.choice([on_streams_of_their_own, on_every_stream]))


def own_sends(chance: random.Random) -> Shape:
    """Custom sends and receives."""
    return _own(chance, extras=chance.choice([between_stages, between_stages_with_ids]))


STRUCTURES: dict[str, Structure] = {
    structure.__name__: structure
    for structure in (
        published,
        gpipe_with_ids,
        one_f_one_b_with_ids,
        interleaved,
        split_backward,
        gradient_accumulation,
        buckets,
        fully_sharded,
        fully_sharded_stages,
        own_computations,
        own_streams,
        own_sends,
    )
}


def made(structure: Structure, seed: int, *, num_steps: int = 1, steady: bool = False) -> Window:
    """A job of the structure; on steady machines, or with random delays and clocks."""
    chance = random.Random(seed)
    planned = plan(structure(chance), chance)
    return record([planned] * num_steps, _times(chance, steady=steady), chance)


def changing(structure: Structure, seed: int) -> Window:
    """Four steps of two structures: of the other one, the micro-batches or the end differ."""
    chance = random.Random(seed)
    shape = structure(chance)
    more = replace(shape, num_microbatches=shape.num_microbatches + 1)
    other = replace(shape, with_gc=not shape.with_gc)
    if shape.sizes.vpp_size == 1 and chance.random() < 0.5:
        other = more
    state = chance.getstate()
    plans = []
    for each in (shape, other):
        chance.setstate(state)
        plans.append(plan(each, chance))
    kinds = [chance.randint(0, 1) for _ in range(2)]
    return record([plans[kind] for kind in (0, *kinds, 1)], _times(chance, steady=False), chance)


def _times(chance: random.Random, *, steady: bool) -> Times:
    return Steady(chance) if steady else Unsteady(chance, chance.choice([0.0, 0.005, 0.050]))


seeds = st.integers(0, 2**32)


@st.composite
def windows(draw: st.DrawFn, max_steps: int = 2) -> Window:
    """Windows of jobs that the published analyser reads, too."""
    return made(published, draw(seeds), num_steps=draw(st.integers(1, max_steps)))
