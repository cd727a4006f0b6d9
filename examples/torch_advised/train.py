"""Trains several plans in sequence on one rank; run on every rank.

Forwards, backwards, transfers, collectives and garbage collections are real; only the time of a
layer is that of a simulated accelerator. Each run is a job of its own, without barriers in it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline_client
import torch
import torch.distributed as dist
from paceline_client import topology
from paceline_client.integrations import ddp, torch_pipeline
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from examples.torch_faults.priority import wake_first
from examples.torch_pipeline.batches import Batch
from examples.torch_pipeline.model import LENGTH, Stage, loss_of

from .accelerator import Accelerator
from .documents import Documents, batch_of, global_batch, pasted_function, squares_of
from .options import Options
from .plan import Plan

CLOSE_S = 20.0


def main() -> None:
    """Train the runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", default=os.environ.get("PACELINE_TOKEN", ""))
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--runs", nargs="+", metavar="JSON")
    source.add_argument("--runs-from", type=Path, metavar="FILE", help="one a line, until it ends")
    told = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    wake_first()
    dist.init_process_group("gloo")
    for plan in _plans(told.runs, told.runs_from):
        took_s = Training(plan, told.url, told.token).run()
        said = {"run": plan.name, "step_s": took_s[1:]}
        print(json.dumps(said), flush=True)  # noqa: T201
    dist.destroy_process_group()


def _plans(runs: list[str] | None, file: Path | None) -> Iterator[Plan]:
    """Plans of the command line, or of a file such as a FIFO, which rank 0 reads."""
    if file is None:
        yield from map(Plan.of, runs or [])
        return
    opened = file.open() if dist.get_rank() == 0 else contextlib.nullcontext()
    with opened as lines:
        while True:
            line = [lines.readline() if lines is not None else ""]
            dist.broadcast_object_list(line)
            if not line[0]:
                return
            yield Plan.of(line[0])


class Training:
    """One run, on one rank."""

    def __init__(self, plan: Plan, url: str, token: str) -> None:
        self.plan, self.shape = plan, plan.shape
        self.options, self._distribute = Options.of(plan.pasted), pasted_function(plan.code)
        self._url, self._token = url, token
        pp_size = self.shape.pp_size
        self._mesh = init_device_mesh(
            "cpu", (pp_size, dist.get_world_size() // pp_size), mesh_dim_names=("pp", "dp")
        )
        self.place = topology.from_device_mesh(self._mesh)
        self.is_first, self.is_last = self.place.stage == 0, self.place.stage == pp_size - 1
        self.layers = self.options.layers or (self.shape.layers // pp_size,) * pp_size
        if len(self.layers) != pp_size or sum(self.layers) != self.shape.layers:
            raise ValueError(
                f"layers {self.layers}: {self.shape.layers} are to be on {pp_size} stages"
            )

    def run(self) -> list[float]:
        """Train all steps and end the job; seconds of each."""
        dist.barrier()
        recorder = paceline_client.start(
            self.plan.name,
            self._url,
            self._token,
            topology=self.place,
            host=f"host-{dist.get_rank()}",
            framework="PyTorch",
        )
        self._prepare_collector()
        took_s = self._in_pipeline(recorder) if self.shape.pp_size > 1 else self._alone(recorder)
        recorder.close(CLOSE_S)
        gc.enable()
        dist.barrier()
        if dist.get_rank() == 0:
            with contextlib.suppress(paceline_client.Refused, paceline_client.Unreachable):
                paceline_client.end_job(self._url, self._token, self.plan.name)
        return took_s

    # Garbage collection, as Megatron-LM's --manual-gc does it.

    def _prepare_collector(self) -> None:
        gc.collect()
        if not self.shape.sentences:
            gc.freeze()  # PyTorch's modules take a fifth of a second to collect
            return
        gc.unfreeze()
        if self.options.gc_every is not None:
            gc.disable()
        gc.collect()

    def _end_step(self, number: int) -> None:
        every = self.options.gc_every
        if every and number % every == 0:
            gc.collect()

    # The model of this rank, its micro-batches of a step, and the two ways to train.

    def _module(self) -> Stage:
        torch.manual_seed(self.place.stage)
        accelerator = Accelerator(self.shape.layer_s)
        stage = Stage(
            self.layers[self.place.stage],
            is_first=self.is_first,
            is_last=self.is_last,
            pace=accelerator,
            output_layers=self.shape.output_layers,
        )
        accelerator.watch(stage)
        if self.shape.sentences:
            documents = Documents(self.shape.sentences, dist.get_rank())
            stage.register_forward_pre_hook(documents.parse)
        return stage

    def _batch(self, step: int) -> Batch:
        dp_size = self.place.dp_size
        lengths = global_batch(
            step, dp_size * self.shape.microbatches, is_uneven=self.shape.is_uneven
        )
        rows = self._distribute(lengths, dp_size)
        return batch_of(step, lengths, rows[self.place.dp_rank])

    def _in_pipeline(self, recorder: Any) -> list[float]:
        module: nn.Module = DistributedDataParallel(
            self._module(), process_group=self._mesh.get_group("dp")
        )
        ddp.attach(recorder, module, chunk=0, computes=False)
        stage = PipelineStage(
            module,
            self.place.stage,
            self.shape.pp_size,
            torch.device("cpu"),
            group=self._mesh.get_group("pp"),
        )
        schedule = Schedule1F1B(stage, n_microbatches=self.shape.microbatches, loss_fn=loss_of)
        torch_pipeline.attach(recorder, schedule)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

        def train(batch: Batch) -> None:
            schedule.step(
                *([batch.inputs] if self.is_first else []),
                lengths=batch.lengths,
                target=batch.targets if self.is_last else None,
            )
            with recorder.op("optimizer"):
                optimizer.step()
                module.zero_grad(set_to_none=False)

        return self._steps(recorder, train)

    def _alone(self, recorder: Any) -> list[float]:
        """Data parallelism only: one stage."""
        model = DistributedDataParallel(self._module())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ddp.attach(recorder, model, optimizer=optimizer, work=_work)

        def train(batch: Batch) -> None:
            last = len(batch.inputs) - 1
            for at in range(last + 1):
                row = slice(at, at + 1)
                model.require_backward_grad_sync = at == last
                loss_of(model(batch.inputs[row], batch.lengths[row]), batch.targets[row]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        return self._steps(recorder, train)

    def _steps(self, recorder: Any, train: Any) -> list[float]:
        took_s = []
        first = self.plan.first_step
        for number in range(first, first + self.plan.steps):
            began_s = time.perf_counter()
            batch = self._batch(number)
            with recorder.step(number, kind="train" if number > first else "first"):
                train(batch)
            self._end_step(number)
            took_s.append(time.perf_counter() - began_s)
        return took_s


def _work(_inputs: Tensor, lengths: Tensor) -> dict[str, int]:
    return {"tokens": LENGTH, "seq_len_sq": sum(squares_of(row) for row in lengths.tolist())}


if __name__ == "__main__":
    main()
