"""Trains with DDP and with FSDP2 on two ranks; prints what each recorded, step by step."""

import json
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from paceline_client.integrations import ddp, fsdp2
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 8
LATE_S = 0.05  # extra forward time of rank 1


class Listing:
    """A recorder that keeps its operations in a list."""

    is_recording = True

    def __init__(self) -> None:
        self.ops: list[tuple[str, int, int, int]] = []

    def begin(self, optype: str, *, microbatch: int = -1, chunk: int = -1, **told: int) -> Any:
        """As a recorder's."""
        return optype, chunk, time.perf_counter_ns(), told

    def end(self, begun: Any, **told: int) -> None:
        """As a recorder's."""
        optype, chunk, start_ns, _ = begun
        self.ops.append((optype, chunk, start_ns, time.perf_counter_ns()))

    def taken(self) -> list[tuple[str, int, float, float]]:
        """Operations since the last call, by start: type, chunk, start and end in seconds."""
        ops, self.ops = sorted(self.ops, key=lambda op: op[2]), []
        since = ops[0][2] if ops else 0
        return [(name, chunk, (a - since) / 1e9, (b - since) / 1e9) for name, chunk, a, b in ops]


class Late(nn.Module):
    """Identity layer; on rank 1 it sleeps first."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The unchanged inputs."""
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        return inputs


def model() -> nn.Module:
    """The same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), Late(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)]
    return nn.Sequential(*layers)


def train(recorder: Listing, module: Any, optimizer: Any, accumulated: int) -> list[Any]:
    """The operations of each of three steps, and the last loss."""
    inputs = torch.ones(4, WIDTH) * (1 + dist.get_rank())
    steps, loss = [], torch.zeros(())
    for _ in range(3):
        for number in range(accumulated):
            if hasattr(module, "no_sync"):
                module.require_backward_grad_sync = number == accumulated - 1
            loss = (module(inputs) ** 2).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(recorder.taken())
    return [steps, float(loss)]


def with_ddp(is_recorded: bool) -> list[Any]:
    """Two micro-batches a step, gradients reduced after the second."""
    recorder = Listing()
    module = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    if is_recorded:
        ddp.attach(recorder, module, optimizer=optimizer)
    return train(recorder, module, optimizer, accumulated=2)


def with_fsdp2(is_recorded: bool) -> list[Any]:
    """Every linear layer sharded by itself."""
    recorder = Listing()
    module: Any = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    if is_recorded:
        fsdp2.attach(recorder, module, optimizer=optimizer)
    return train(recorder, module, optimizer, accumulated=1)


def main() -> None:
    """Train each way, first recorded, then unrecorded."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, run in (("ddp", with_ddp), ("fsdp2", with_fsdp2)):
        steps, loss = run(True)
        _, loss_without = run(False)
        said = {"name": name, "steps": steps, "loss": loss, "without": loss_without}
        print(json.dumps(said), flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
