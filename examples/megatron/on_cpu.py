"""Trains a tiny GPT with megatron-core on the CPU, recorded by Paceline.

    torchrun --nproc-per-node 4 examples/megatron/on_cpu.py --pp 2

Megatron trains on GPUs. Here its own schedules, model, optimizer and transfers run on gloo, with
its GPU functions replaced. That shows every operation that
`paceline_client.integrations.megatron` records, but not how fast Megatron is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

LENGTH, VOCABULARY = 64, 256
LAYER_S = 0.02  # sleep in a chunk's forward, since four processes share few cores
SLOWER = 2.5


def on_cpu() -> None:
    """Replace Megatron's GPU functions by CPU ones."""
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    kind = torch.Tensor.type
    torch.Tensor.type = lambda tensor, *to: kind(tensor, *to) if to else "torch.cuda.FloatTensor"
    for name in ("zeros", "empty", "tensor"):
        setattr(torch, name, partial(_anywhere, getattr(torch, name)))
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()  # no dropout


def _anywhere(make: Callable[..., Any], *args: Any, device: Any = None, **more: Any) -> Any:
    return make(*args, **more)


def model_chunks(told: argparse.Namespace) -> list[Any]:
    """This stage's chunks of a tiny GPT, under Megatron's own data parallelism."""
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    pp_size, vpp_size = told.pp, told.vpp
    config = TransformerConfig(
        num_layers=pp_size * (vpp_size or 1),
        hidden_size=256,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        pipeline_model_parallel_size=pp_size,
        virtual_pipeline_model_parallel_size=vpp_size,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
        overlap_p2p_comm=told.overlap_p2p,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    config.finalize_model_grads_func = finalize_model_grads
    shards = DistributedDataParallelConfig(use_distributed_optimizer=told.distributed_optimizer)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    chunks: list[Any] = []
    for chunk in range(vpp_size or 1):
        parallel = {"vp_stage": chunk} if vpp_size else {}
        model = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(),
            vocab_size=VOCABULARY,
            max_sequence_length=LENGTH,
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == pp_size - 1 and chunk == (vpp_size or 1) - 1,
            share_embeddings_and_output_weights=True,
            **parallel,
        )
        chunks.append(DistributedDataParallel(config, shards, model))
    return chunks


def batches(seed: int) -> Iterator[torch.Tensor]:
    """Easy tokens: each is the previous one plus one."""
    random = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(VOCABULARY, (2, 1), generator=random)
        yield (first + torch.arange(LENGTH + 1)) % VOCABULARY


class Paced(torch.autograd.Function):
    """Sleeps in the forward, and twice as long in the backward, like real layers."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, took_s: float) -> torch.Tensor:
        """The unchanged output after a sleep."""
        ctx.took_s = took_s
        time.sleep(took_s)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The unchanged gradient after a sleep."""
        time.sleep(2 * ctx.took_s)
        return gradient, None


def forward_step(took_s: float, data: Iterator[torch.Tensor], model: Any) -> tuple[Any, Any]:
    """One micro-batch through one chunk."""
    import paceline_client.integrations.megatron as paceline

    tokens = next(data)
    paceline.tell(tokens=2 * LENGTH, seq_len_sq=2 * LENGTH**2)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    mask = torch.ones(1, 1, LENGTH, LENGTH).tril() < 0.5
    output = model(inputs, torch.arange(LENGTH).expand(2, LENGTH), mask, labels=labels)
    output = Paced.apply(output, took_s)
    return output, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})


def say_that_it_is_over() -> None:
    """End the job on the server from one rank, after all ranks have sent their batches."""
    where = [os.environ.get(f"PACELINE_{name}") for name in ("URL", "TOKEN", "JOB")]
    dist.barrier()
    if dist.get_rank() == 0 and all(where):
        import paceline_client

        with contextlib.suppress(paceline_client.Refused, paceline_client.Unreachable):
            paceline_client.end_job(*where)


def main() -> None:
    """Train for some steps."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--pp", type=int, default=2)
    asked.add_argument("--vpp", type=int, default=None)
    asked.add_argument("--steps", type=int, default=24)
    asked.add_argument("--microbatches", type=int, default=4)
    asked.add_argument("--slow-rank", type=int, default=-1)
    asked.add_argument("--overlap-p2p", action="store_true")
    asked.add_argument("--distributed-optimizer", action="store_true")
    asked.add_argument("--unrecorded", action="store_true")
    told = asked.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    on_cpu()

    from megatron.core import parallel_state
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=told.pp, virtual_pipeline_model_parallel_size=told.vpp
    )
    if not told.unrecorded:
        import paceline_client.integrations.megatron as paceline

        recorder = paceline.install()
    chunks = model_chunks(told)
    adam = OptimizerConfig(
        lr=1e-3, clip_grad=1.0, use_distributed_optimizer=told.distributed_optimizer
    )
    optimizer = get_megatron_optimizer(adam, chunks)
    schedule = get_forward_backward_func()
    data = [batches(parallel_state.get_data_parallel_rank()) for _ in chunks]
    took_s = LAYER_S * (SLOWER if dist.get_rank() == told.slow_rank else 1.0)
    for step in range(told.steps):
        began_s = time.perf_counter()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=partial(forward_step, took_s),
            data_iterator=data if told.vpp else data[0],
            model=chunks if told.vpp else chunks[0],
            num_microbatches=told.microbatches,
            seq_length=LENGTH,
            micro_batch_size=2,
        )
        optimizer.step()
        if losses:
            loss = sum(each["loss"].item() for each in losses) / len(losses)
            took_ms = 1e3 * (time.perf_counter() - began_s)
            print(f"step {step}: loss {loss:.4f}, {took_ms:.1f} ms", flush=True)  # noqa: T201
    if not told.unrecorded:
        recorder.close(timeout_s=10.0)
        say_that_it_is_over()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
