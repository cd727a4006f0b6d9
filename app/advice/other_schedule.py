"""Fix: another pipeline schedule, or more micro-batches in the same global batch.

A worker idles while the pipeline fills and drains (the bubble). Interleaving v model chunks makes
that 1 / v as long, zero-bubble schedules fill it with gradients of weights, and smaller
micro-batches make it shorter. Each is simulated (`rebuilt_pipeline.py`); the fastest is advised,
where even the cautious end of its range wins 3 %.

Assumptions, where the record shows nothing, are named: layers are alike, half of a backward (0.3 to
0.6) computes weights' gradients, and smaller micro-batches shrink in proportion. Fewer and larger
micro-batches are never offered: they win only the fixed costs of each, which no record shows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.advice.fix import AdviceCase, Fix, Need, NotOffered, Paste
from app.advice.rebuilt_pipeline import Rebuilt, RebuiltPipeline, no_once_delays, step_s_of_variants
from app.advice.recorded_pipeline import NotRebuilt
from app.synth.schedules import Interleaved, ZeroBubble
from app.trace.window import Floats


def with_split_backward(job: Rebuilt, weight_share: float) -> Rebuilt:
    """ZB-H1: this share of each backward computes the weights' gradients, and may wait."""
    drawn = replace(
        job.drawn,
        weight_share=np.full((1,) * 5, weight_share) + np.zeros_like(job.drawn.backward_s),
        weight_delay_s=job.drawn.backward_delay_s,
    )
    return replace(job, schedule=ZeroBubble(), drawn=drawn)


def with_chunks(job: Rebuilt, chunk_shares: Floats) -> Rebuilt:
    """Interleaved 1F1B with v model chunks on a stage.

    `chunk_shares` [pp, v] are the shares of a stage's computations in each of its chunks. A
    transfer takes as long as the mean one into that stage; into the first stage (the last one,
    backward) as long as the mean of all stages.
    """
    drawn, chunks = job.drawn, chunk_shares.shape[1]
    shares = chunk_shares[:, :, None, None, None]
    delay_s = np.zeros((*chunk_shares.shape, drawn.forward_s.shape[2], 1, 1))
    once_s = dict(drawn.once_s)
    for name in ("params-all-gather", "grads-reduce-scatter"):
        chunk_s = once_s[name].sum(axis=1, keepdims=True) / chunks
        once_s[name] = np.repeat(chunk_s, chunks, axis=1)
    return replace(
        job,
        schedule=Interleaved(),
        parallelism=replace(job.parallelism, vpp_size=chunks),
        drawn=replace(
            drawn,
            forward_s=drawn.forward_s.sum(axis=1, keepdims=True) * shares,
            backward_s=drawn.backward_s.sum(axis=1, keepdims=True) * shares,
            forward_delay_s=delay_s,
            backward_delay_s=delay_s,
            forward_transfer_s=_with_wrap(drawn.forward_transfer_s, 0, chunks),
            backward_transfer_s=_with_wrap(drawn.backward_transfer_s, -1, chunks),
            once_s=once_s,
            once_delay_s=no_once_delays(once_s, chunk_shares.shape[0]),
        ),
    )


def _with_wrap(transfer_s: Floats, end: int, chunks: int) -> Floats:
    """Transfers into each chunk, and around from one end of the pipeline to the other."""
    mean_s = transfer_s.mean(axis=1, keepdims=True)
    inner_s = np.delete(mean_s, end, axis=0)
    if inner_s.size:
        mean_s[end] = inner_s.mean(axis=0)
    return np.repeat(mean_s, chunks, axis=1)


def with_smaller_microbatches(
    job: Rebuilt, times: int, *, fixed_share: float = 0.0, fixed_transfer: float = 0.0
) -> Rebuilt:
    """`times` as many micro-batches, each of 1 / `times` of the work and of the bytes.

    Of each computation `fixed_share`, and of each transfer `fixed_transfer`, does not shrink with
    the micro-batch: kernels too small for the GPU, latency.
    """
    computed = fixed_share + (1 - fixed_share) / times
    moved = fixed_transfer + (1 - fixed_transfer) / times
    factors = {
        "forward_s": computed,
        "backward_s": computed,
        "forward_transfer_s": moved,
        "backward_transfer_s": moved,
        "forward_delay_s": 1.0,
        "backward_delay_s": 1.0,
    }
    if job.drawn.weight_share is not None:
        factors |= {"weight_share": 1.0, "weight_delay_s": 1.0}
    repeated = {
        name: getattr(job.drawn, name).repeat(times, axis=2) * factor
        for name, factor in factors.items()
    }
    return replace(job, counts=job.counts * times, drawn=replace(job.drawn, **repeated))


def end_heavy_shares(stage_s: Floats, chunks: int) -> Floats:
    """[pp, chunks], shares of a stage's computations in its chunks, from their seconds [pp].

    Layers are dealt out evenly. What the first stage computes beyond an ordinary one (embedding) is
    in its first chunk, what the last one computes (loss) in its last chunk.
    """
    pp_size = stage_s.size
    shares = np.full((pp_size, chunks), 1 / chunks)
    if pp_size > 2:
        ordinary_s = float(stage_s[1:-1].mean())
        for stage, chunk in ((0, 0), (pp_size - 1, chunks - 1)):
            extra = max(0.0, 1 - ordinary_s / float(stage_s[stage]))
            shares[stage] *= 1 - extra
            shares[stage, chunk] += extra
    return shares


NAME = "other-schedule"
# Gain of the cautious end of a range from which a fix is worth a restart and a check of memory.
MIN_GAIN = 0.03
# Model chunks on a stage, the first that can be dealt out: 4 leave half as much bubble as 2.
CHUNKS = (4, 2)
# Larger pipelines, in operations of a replica's step, take too long to simulate: about 0.3 s.
MAX_PIPELINE_OPS = 15_000
TIMES_MICROBATCHES = 2
# Share of a backward that computes weights' gradients: expected, least and most.
WEIGHT_SHARE, LEAST_WEIGHT_SHARE, MOST_WEIGHT_SHARE = 0.5, 0.3, 0.6
# Cautious ends: chunks compute so much longer; so much of a computation does not shrink.
CHUNK_OVERHEAD, FIXED_SHARE = 0.02, 0.05
# Options that win less at best, with so much slack, than another one does are not simulated.
SLACK = 1.1
# Predictions with assumptions are so sure, before the replay's discrepancy.
CONFIDENCE = 0.8


@dataclass(frozen=True)
class Option:
    """Another pipeline: as expected and at the ends of what is assumed, and what to paste.

    `variants` are jobs of one structure, the expected one first. `most_won` is the share of the
    bubble that the option wins at best.
    """

    kind: str
    title: str
    most_won: float
    variants: Callable[[RebuiltPipeline], Sequence[Rebuilt]]
    risk: str
    paste: tuple[Paste, ...]
    needs: tuple[Need, ...] = ()
    microbatches: int | None = None


def other_schedule(case: AdviceCase) -> Fix | NotOffered:
    """The fastest other pipeline."""
    if case.replay.window.job.parallelism.pp_size < 2:
        return NotOffered(NAME, "the job has one stage, so no pipeline bubble")
    model = case.pipeline
    if isinstance(model, NotRebuilt):
        return NotOffered(NAME, model.reason)
    idle = idle_share(model)
    if idle < MIN_GAIN:
        return NotOffered(NAME, f"the busiest worker idles for {idle:.1%} of the step only")
    best: Fix | None = None
    for option in sorted(options(case, model), key=lambda option: -option.most_won):
        if best and case.step_s - best.step_s >= option.most_won * SLACK * model.fill_s.max():
            break
        fix = fix_of_option(case, model, option)
        is_sure = fix.step_range_s[1] <= case.step_s * (1 - MIN_GAIN)
        if is_sure and (best is None or fix.step_s < best.step_s):
            best = fix
    return best or NotOffered(NAME, "no other schedule is sure to win 3 %", _needs(case))


def _needs(case: AdviceCase) -> tuple[Need, ...]:
    is_known = case.facts.layers or case.facts.layers_by_stage
    return () if is_known else (Need("the model's layers, for interleaving", "layers"),)


def idle_share(model: RebuiltPipeline) -> float:
    """Share of the step in which the busiest worker computes nothing: no schedule wins more."""
    busy_s = model.stage_s[:, model.steps].max(axis=(0, 2)) * model.num_microbatches
    return float(1 - busy_s.mean() / model.as_is_s.mean())


def options(case: AdviceCase, model: RebuiltPipeline) -> Iterator[Option]:
    """Other pipelines that are possible for the job."""
    sizes = model.group.template.parallelism
    if sizes.vpp_size == 1 and not model.splits_backward:
        yield _zero_bubble(model)
    for chunks in CHUNKS:
        layers = _layers_per_chunk(case, model, chunks)
        is_small = model.recorded.structure.num_ops * chunks <= MAX_PIPELINE_OPS * sizes.vpp_size
        if layers and is_small and chunks > sizes.vpp_size and not model.splits_backward:
            yield _interleaved(chunks, layers)
            break
    yield _smaller_microbatches(model)


def fix_of_option(case: AdviceCase, model: RebuiltPipeline, option: Option) -> Fix:
    """The option as a fix."""
    variants_s = step_s_of_variants(option.variants(model)).mean(axis=1)
    times_s = (case.step_s * variants_s / model.as_is_s.mean()).tolist()
    return case.fix(
        NAME,
        option.title,
        step_s=times_s[0],
        step_range_s=(min(times_s), max(times_s)),
        certainty=CONFIDENCE,
        risk=option.risk,
        change=model.change(lambda now: option.variants(now)[0].step_s()),
        paste=option.paste,
        needs=(*option.needs, *_needs(case), *case.restart_needs()),
        microbatches=option.microbatches,
    )


def _layers_per_chunk(case: AdviceCase, model: RebuiltPipeline, chunks: int) -> int:
    """Layers of each chunk; 0 if unknown, or if layers or micro-batches cannot be dealt out."""
    sizes, facts = model.group.template.parallelism, case.facts
    layers = facts.layers or 0
    if facts.layers_by_stage is not None:
        are_equal = len(set(facts.layers_by_stage)) == 1
        layers = sum(facts.layers_by_stage) if are_equal else 0
    if layers % (sizes.pp_size * chunks) or model.num_microbatches % sizes.pp_size:
        return 0
    return layers // (sizes.pp_size * chunks)


def _interleaved(chunks: int, layers: int) -> Option:
    def variants(now: RebuiltPipeline) -> Sequence[Rebuilt]:
        shares = end_heavy_shares(now.stage_s.mean(axis=(1, 2)), chunks)
        expected = with_chunks(now.as_is(), shares)
        slower = {
            name: getattr(expected.drawn, name) * (1 + CHUNK_OVERHEAD)
            for name in ("forward_s", "backward_s")
        }
        return expected, replace(expected, drawn=replace(expected.drawn, **slower))

    return Option(
        kind="interleaved",
        title=f"Interleave {chunks} model chunks of {layers} layer{'s' * (layers > 1)} on a stage",
        most_won=1 - 1 / chunks,
        variants=variants,
        risk="More activations are held, and transfers between stages are "
        f"{chunks} times as many. Predicted with equal layers; checkpoints are loaded in another "
        "layout.",
        paste=(
            Paste("Megatron-LM", f"--num-layers-per-virtual-pipeline-stage {layers}"),
            Paste(
                "torchtitan",
                '--parallelism.pipeline_parallel_schedule "Interleaved1F1B" '
                f"--parallelism.pipeline_parallel_layers_per_stage {layers} "
                "--parallelism.pipeline_parallel_first_stage_less_layers 0 "
                "--parallelism.pipeline_parallel_last_stage_less_layers 0",
            ),
        ),
    )


def _zero_bubble(model: RebuiltPipeline) -> Option:
    m, pp_size = model.num_microbatches, model.group.pp_size
    rounds = max(1, m // pp_size)

    def variants(now: RebuiltPipeline) -> Sequence[Rebuilt]:
        shares = WEIGHT_SHARE, LEAST_WEIGHT_SHARE, MOST_WEIGHT_SHARE
        return [with_split_backward(now.as_is(), share) for share in shares]

    code = (
        f"schedule = ScheduleInterleavedZeroBubble(\n"
        f"    [stage], n_microbatches={m}, loss_fn=loss_fn\n)"
    )
    need = Need(f"a multiple of {rounds} micro-batches, which PyTorch's schedule asks for")
    torch_takes = m % rounds == 0
    return Option(
        kind="zero-bubble",
        title="Use a zero-bubble schedule (ZB-H1): gradients of weights fill the bubble",
        most_won=0.7,  # 2 w / (f + b), of a backward twice as long as a forward
        variants=variants,
        risk=f"Assumes that {WEIGHT_SHARE:.0%} of a backward computes weights' gradients "
        f"({LEAST_WEIGHT_SHARE:.0%} to {MOST_WEIGHT_SHARE:.0%} in the range); the record does not "
        "tell. Not with torch.compile; Megatron-LM and torchtitan have no such schedule with one "
        "model chunk a stage.",
        paste=(Paste("torch.distributed.pipelining", code),) if torch_takes else (),
        needs=() if torch_takes else (need,),
    )


def _smaller_microbatches(model: RebuiltPipeline) -> Option:
    times = TIMES_MICROBATCHES
    count = model.num_microbatches * times

    def variants(now: RebuiltPipeline) -> Sequence[Rebuilt]:
        job = now.as_is()
        return (
            with_smaller_microbatches(job, times),
            with_smaller_microbatches(job, times, fixed_share=FIXED_SHARE, fixed_transfer=1.0),
        )

    return Option(
        kind="micro-batches",
        title=f"Compute {count} micro-batches of half the size, not {model.num_microbatches}",
        most_won=1 - 1 / times,
        variants=variants,
        risk="Possible only where a micro-batch has at least 2 sequences. Assumes that half a "
        "micro-batch takes half as long; at the cautious end "
        f"{FIXED_SHARE:.0%} of each computation does not shrink, nor do transfers.",
        paste=(
            Paste("Megatron-LM, B is half of the present micro-batch size", "--micro-batch-size B"),
            Paste(
                "torchtitan, with half as many tokens in a micro-batch",
                f"--parallelism.num_pp_microbatches {count}",
            ),
            Paste(
                "torchtitan, older versions, B is half of the present one",
                "--parallelism.pipeline_parallel_microbatch_size B",
            ),
        ),
        needs=(Need("how many sequences a micro-batch has: at least 2"),),
        microbatches=count,
    )
