"""One rank of a gloo training of two replicas of two tensor-parallel peers, all of them recorded.

Computations sleep, so that two cores are enough for four processes: the collectives are real, and
only the moment at which each rank joins them matters.
"""

import sys
import time

import paceline_client
import torch
import torch.distributed as dist
from paceline_client import Topology

TP, DP = 2, 2
LAYERS = 3
LAYER_S = 0.01
SLOWDOWN = 3.0


def main() -> None:
    """Train; arguments are the server's address, the number of steps and the slow rank."""
    url, steps, slow_rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    dp_rank, tp_rank = divmod(rank, TP)
    layer_s = LAYER_S * (SLOWDOWN if rank == slow_rank else 1.0)
    # Every process has to call new_group for every group.
    tp_groups = [dist.new_group([*range(first, first + TP)]) for first in range(0, TP * DP, TP)]
    dp_groups = [dist.new_group([*range(first, TP * DP, TP)]) for first in range(TP)]
    topology = Topology(
        rank=rank, dp_rank=dp_rank, stage=0, dp_size=DP, pp_size=1, tp_size=TP,
        records=tp_rank == 0,
    )  # fmt: skip
    recorder = paceline_client.start(
        "peers", url, "none", topology=topology, run_key="peers", host=f"host-{dp_rank}",
        local_rank=tp_rank, groups=True, group_every=2,
    )  # fmt: skip
    tp = recorder.group("tp", "tp", tp_groups[dp_rank])
    dp = recorder.group("dp", "dp", dp_groups[tp_rank])
    values = torch.ones(1024)
    dist.barrier()
    for step in range(steps):
        with recorder.step(step):
            for optype in ("forward-compute", "backward-compute"):
                with recorder.op(optype, microbatch=0, chunk=0):
                    for _ in range(LAYERS):
                        time.sleep(layer_s)
                        with recorder.op("all-reduce", group=tp, bytes=4096):
                            dist.all_reduce(values, group=tp_groups[dp_rank])
            with recorder.op("grads-all-reduce", group=dp, bytes=4096):
                dist.all_reduce(values, group=dp_groups[tp_rank])
    recorder.flush(60.0)
    recorder.close(5.0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
