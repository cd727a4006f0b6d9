"""Trains several plans in sequence on one rank; run on every rank.

Each run is a job of its own, recorded as docs/feeds/torch.md says. Without barriers: ranks meet in
the collectives of the training alone. Each rank prints one line of JSON a run.
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
from typing import Any

import paceline_client
import torch
import torch.distributed as dist
from paceline_client import topology
from paceline_client.integrations import ddp, fsdp2, torch_pipeline
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from examples.torch_pipeline import batches
from examples.torch_pipeline import model as transformer

from .faults import (
    HOST_WORK_S,
    SLOW_ITEM_S,
    SLOWDOWN,
    GcStorm,
    Rows,
    work_on_host,
)
from .layers import WIDTH, Pace, SharedLayer, stack
from .plan import Plan
from .priority import wake_first

ROWS = 4  # of a micro-batch
LAYERS = 3
SHARDED_LAYERS = 4
MICROBATCHES = 2  # of a step under DDP
PEERS = 4  # of a tensor-parallel group
PIPELINE_MICROBATCHES = 4
STAGE_LAYERS, LONG_STAGE_LAYERS = 2, 4
STAGE_PACE = 0.6  # of the example's layers, whose steps would take long
CLOSE_S = 10.0


def main() -> None:
    """Train the runs of the command line."""
    train_runs(Training)


def train_runs(kind: type[Training]) -> None:
    """Train the runs of the command line, each by an object of this class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", default=os.environ.get("PACELINE_TOKEN", ""))
    parser.add_argument("--runs", nargs="+", required=True, metavar="JSON", type=Plan.of)
    told = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    _run_undisturbed()
    dist.init_process_group("gloo")
    for plan in told.runs:
        training = kind(plan, told.url, told.token)
        began_s = time.perf_counter()
        training.run()
        took_s = time.perf_counter() - began_s
        said = {"run": plan.name, "took_s": took_s, "overslept": training.pace.overslept()}
        print(json.dumps(said), flush=True)  # noqa: T201
    dist.destroy_process_group()


def _run_undisturbed() -> None:
    """Raise the priority of this process, and keep the garbage-collected heap small."""
    wake_first()
    # PyTorch's modules take a tenth of a second to collect: a real pause, in a healthy run, too.
    gc.collect()
    gc.freeze()


class Training:
    """One run, on one rank."""

    def __init__(self, plan: Plan, url: str, token: str) -> None:
        self.plan = plan
        self._url, self._token = url, token
        self._rank = dist.get_rank()
        self.is_culprit = plan.rank == self._rank
        self._fault = plan.fault
        is_slow = self.is_culprit and self._fault in ("slow-rank", "slow-peer")
        self.pace = Pace(SLOWDOWN if is_slow else 1.0, seed=1000 * plan.seed + self._rank)

    def run(self) -> None:
        """Train, deliver the batches, and end the job."""
        self.train()
        dist.barrier()
        if self._rank == 0:
            with contextlib.suppress(paceline_client.Refused, paceline_client.Unreachable):
                paceline_client.end_job(self._url, self._token, self.plan.name)

    def train(self) -> None:
        """Train all steps, recorded; return once the server has the record."""
        ways = {
            "ddp": self._with_ddp,
            "fsdp2": self._with_fsdp2,
            "pipeline": self._in_pipeline,
            "peers": self._with_peers,
        }
        ways[self.plan.way]()

    def options(self) -> dict[str, Any]:
        """Recorder options: the run's job and this rank's host."""
        host = "host" if self.plan.shares_host else f"host-{self._rank}"
        return {"job": self.plan.name, "url": self._url, "token": self._token, "host": host}

    def _started(self, place: Any = None) -> Any:
        place = place or topology.from_torch()
        return paceline_client.start(topology=place, framework="PyTorch", **self.options())

    # Data parallelism with a custom loop.

    def _with_ddp(self) -> None:
        recorder = self._started()
        layers = stack(self.pace, LAYERS)
        storm = None
        if self.is_culprit and self._fault == "gc-storms":
            storm = GcStorm(layers, seed=self.plan.seed)
        model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ddp.attach(recorder, model, optimizer=optimizer)
        self._train(recorder, model, optimizer, storm)
        recorder.close(CLOSE_S)

    def _train(
        self, recorder: Any, model: Any, optimizer: Any, storm: GcStorm | None = None
    ) -> None:
        for number, parts in self._steps(recorder, MICROBATCHES):
            if storm is not None:
                storm.begin_step(MICROBATCHES)
            with recorder.step(number, kind="train" if number else "first"):
                for at, (inputs, labels) in enumerate(parts):
                    model.require_backward_grad_sync = at == MICROBATCHES - 1
                    self._work(0)
                    loss = ((model(inputs) - labels) ** 2).mean()
                    self._work(1)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    def _with_fsdp2(self) -> None:
        recorder = self._started()
        model: Any = stack(self.pace, SHARDED_LAYERS)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        fsdp2.attach(recorder, model, optimizer=optimizer)
        for number, parts in self._steps(recorder, 1):
            with recorder.step(number, kind="train" if number else "first"):
                for inputs, labels in parts:
                    ((model(inputs) - labels) ** 2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        recorder.close(CLOSE_S)

    def _steps(
        self, recorder: Any, num_microbatches: int
    ) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
        """Each step's number and micro-batches: from a loader, or as they are in memory."""
        if not self.plan.has_loader:
            part = torch.rand(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
            yield from ((number, [part] * num_microbatches) for number in range(self.plan.steps))
            return
        is_slow = self._fault == "starved" or self.is_culprit
        rows = Rows(self.plan.steps * ROWS, SLOW_ITEM_S if is_slow else 0.0)
        loader: Any = DataLoader(rows, batch_size=ROWS)
        for number, part in enumerate(recorder.data(loader)):
            yield number, [part] * num_microbatches

    def _work(self, variant: int) -> None:
        """Host work of a late host, before its forwards or its backwards."""
        is_late = self.is_culprit and self._fault == "host-work"
        if is_late and variant == self.plan.variant:
            work_on_host(HOST_WORK_S)

    # Replicas of tensor-parallel peers, under DDP: every peer records its group's collectives.

    def _with_peers(self) -> None:
        replica, peer = divmod(self._rank, PEERS)
        mesh = init_device_mesh(
            "cpu", (dist.get_world_size() // PEERS, PEERS), mesh_dim_names=("dp", "tp")
        )
        options = {**self.options(), "host": f"host-{replica}", "local_rank": peer}
        recorder = paceline_client.start(
            topology=topology.from_device_mesh(mesh),
            framework="PyTorch",
            groups=True,
            group_every=1 + self.plan.variant,
            **options,
        )
        declared = recorder.group("tp", "tp", mesh["tp"])
        peers = mesh.get_group("tp")
        torch.manual_seed(0)
        layers = [SharedLayer(self.pace, recorder, declared, peers) for _ in range(LAYERS)]
        model = DistributedDataParallel(
            nn.Sequential(*layers), process_group=mesh.get_group("dp"), bucket_cap_mb=0.02
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ddp.attach(recorder, model, optimizer=optimizer)
        self._train(recorder, model, optimizer)
        recorder.close(CLOSE_S)

    # A pipeline of two stages: the small transformer of the example.

    def _in_pipeline(self) -> None:
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
        place = topology.from_device_mesh(mesh)
        recorder = self._started(place)
        is_first, is_last = place.stage == 0, place.stage == 1
        num_layers = LONG_STAGE_LAYERS if place.stage == self.plan.stage else STAGE_LAYERS
        torch.manual_seed(place.stage)
        pace = transformer.Pace(STAGE_PACE)
        module: nn.Module = transformer.Stage(
            num_layers, is_first=is_first, is_last=is_last, pace=pace
        )
        module = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
        ddp.attach(recorder, module, chunk=0, computes=False)
        stage = PipelineStage(
            module, place.stage, 2, torch.device("cpu"), group=mesh.get_group("pp")
        )
        schedule = Schedule1F1B(
            stage, n_microbatches=PIPELINE_MICROBATCHES, loss_fn=transformer.loss_of
        )
        torch_pipeline.attach(recorder, schedule)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        # In memory before the first step: no data loader.
        batch = batches.batch(0, place.dp_rank, PIPELINE_MICROBATCHES, are_uneven=False)
        for number in range(self.plan.steps):
            with recorder.step(number, kind="train" if number else "first"):
                schedule.step(
                    *([batch.inputs] if is_first else []),
                    lengths=batch.lengths,
                    target=batch.targets if is_last else None,
                )
                with recorder.op("optimizer"):
                    optimizer.step()
                    module.zero_grad(set_to_none=False)
        recorder.close(CLOSE_S)


if __name__ == "__main__":
    main()
