"""Trains under DDP without Paceline, and recorded; prints the losses of each way, as hex."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from paceline_client.integrations import ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.torch_data_parallel import Listing

STEPS = 20
WIDTH = 16


def losses(*, is_recorded: bool, **options: Any) -> list[str]:
    """The loss of each step, to the last bit."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)]
    module = DistributedDataParallel(nn.Sequential(*layers), **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    if is_recorded:
        assert ddp.attach(Listing(), module, optimizer=optimizer)
    torch.manual_seed(1 + dist.get_rank())
    found = []
    for _ in range(STEPS):
        loss = (module(torch.randn(8, WIDTH)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss).hex())
    return found


def main() -> None:
    """Each way to train, one after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0005}):
        without, recorded = (losses(is_recorded=each, **options) for each in (False, True))
        said = {"options": options, "without": without, "recorded": recorded}
        sys.stdout.write(f"{json.dumps(said)}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
