"""One rank of a training: 4 tensor-parallel peers x 2 replicas, collectives by gloo.

Layers sleep in place of computing, so that two cores are enough for eight processes; all that
matters is when each rank comes to the collectives, which are real.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

import paceline_client
import torch
import torch.distributed as dist
from paceline_client import Topology

TP, DP = 4, 2
LAYERS, MICROBATCHES = 3, 2
LAYER_S = 0.008  # a forward; a backward takes twice as long
SIZE = 4096  # numbers that are reduced after each layer
JITTER = 0.05


class Rank:
    """What this rank computes with, how fast, and where it is."""

    def __init__(self, slow_ranks: list[int], slowdown: float) -> None:
        self.rank = dist.get_rank()
        self.dp_rank, self.tp_rank = divmod(self.rank, TP)
        self.pace = slowdown if self.rank in slow_ranks else 1.0
        self.draw = random.Random(self.rank)  # noqa: S311
        # Every process has to call new_group for every group.
        tp = [dist.new_group([*range(first, first + TP)]) for first in range(0, TP * DP, TP)]
        dp = [dist.new_group([*range(first, TP * DP, TP)]) for first in range(TP)]
        self.tp, self.dp = tp[self.dp_rank], dp[self.tp_rank]

    def compute(self, seconds: float) -> None:
        """A layer, as long as it takes this rank."""
        time.sleep(seconds * self.pace * self.draw.uniform(1 - JITTER, 1 + JITTER))


def main() -> None:
    """Train, and record that."""
    options = _arguments()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    here = Rank(options.slow, options.slowdown)
    recorder = paceline_client.start(
        "peers",
        options.url,
        "none",
        topology=Topology(
            rank=here.rank, dp_rank=here.dp_rank, stage=0, dp_size=DP, pp_size=1, tp_size=TP,
            records=here.tp_rank == 0,
        ),
        host=f"host-{here.dp_rank}",
        local_rank=here.tp_rank,
        groups=True,
        group_every=options.group_every,
    )  # fmt: skip
    tp = recorder.group("tp", "tp", here.tp)
    dp = recorder.group("dp", "dp", here.dp)
    activations, gradients = torch.ones(SIZE), torch.ones(4 * SIZE)
    dist.barrier()
    for step in range(options.steps):
        with recorder.step(step):
            for microbatch in range(MICROBATCHES):
                for optype, seconds in (
                    ("forward-compute", LAYER_S),
                    ("backward-compute", 2 * LAYER_S),
                ):
                    with recorder.op(optype, microbatch=microbatch, chunk=0):
                        for _ in range(LAYERS):
                            here.compute(seconds)
                            with recorder.op("all-reduce", group=tp, bytes=4 * SIZE):
                                dist.all_reduce(activations, group=here.tp)
            with (
                recorder.op("grads-reduce-scatter", chunk=0),
                recorder.op("grads-all-reduce", group=dp, bytes=16 * SIZE),
            ):
                dist.all_reduce(gradients, group=here.dp)
            with recorder.op("optimizer"):
                here.compute(0.002)
    is_sent = recorder.flush(60.0)
    sys.stdout.write(f"rank {here.rank}: sent {is_sent}, dropped {recorder.dropped_reasons}\n")
    recorder.close(5.0)
    dist.barrier()
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--slow", type=int, nargs="*", default=[])
    parser.add_argument("--slowdown", type=float, default=1.6)
    parser.add_argument("--group-every", type=int, default=2)
    os.environ.setdefault("PACELINE_RUN_KEY", "peers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
