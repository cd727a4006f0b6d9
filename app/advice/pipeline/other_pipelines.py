"""A rebuilt job with another schedule, more model chunks, or more micro-batches.

Pure functions from one `Rebuilt` to another.
"""

from dataclasses import replace

import numpy as np

from app.advice.pipeline.rebuilt_pipeline import Rebuilt
from app.synth.drawing import DrawnSteps
from app.synth.schedules import Interleaved, ZeroBubble
from app.trace.window import Floats


def with_slower_computations(job: Rebuilt, factor: float) -> Rebuilt:
    """All forwards and backwards so many times as long."""
    drawn = replace(
        job.drawn, forward_s=job.drawn.forward_s * factor, backward_s=job.drawn.backward_s * factor
    )
    return replace(job, drawn=drawn)


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
        each_s = once_s[name].sum(axis=1, keepdims=True) / chunks
        once_s[name] = np.repeat(each_s, chunks, axis=1)
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
            once_delay_s={
                name: np.zeros((chunk_shares.shape[0], each.shape[1], 1, 1))
                for name, each in once_s.items()
            },
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
    drawn: DrawnSteps = replace(
        job.drawn,
        forward_s=np.repeat(job.drawn.forward_s, times, axis=2) * computed,
        backward_s=np.repeat(job.drawn.backward_s, times, axis=2) * computed,
        forward_transfer_s=np.repeat(job.drawn.forward_transfer_s, times, axis=2) * moved,
        backward_transfer_s=np.repeat(job.drawn.backward_transfer_s, times, axis=2) * moved,
        forward_delay_s=np.repeat(job.drawn.forward_delay_s, times, axis=2),
        backward_delay_s=np.repeat(job.drawn.backward_delay_s, times, axis=2),
    )
    if job.drawn.weight_share is not None and job.drawn.weight_delay_s is not None:
        drawn.weight_share = np.repeat(job.drawn.weight_share, times, axis=2)
        drawn.weight_delay_s = np.repeat(job.drawn.weight_delay_s, times, axis=2)
    return replace(job, counts=job.counts * times, drawn=drawn)


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
