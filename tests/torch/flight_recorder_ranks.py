"""Flight recorder entries on each rank of a real gloo job, printed as JSON lines."""

import json
import sys
import time

import torch
import torch.distributed as dist
from paceline_client.integrations.flight_recorder import (
    FlightRecorder,
    _dump,
    _ranks_by_name,
    parsed,
)
from paceline_client.recording.groups import GroupBuffer
from paceline_client.topology import group_ranks
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    """Run some collectives in a mesh of two groups per axis."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    values = torch.ones(16)
    dist.barrier()
    begun_ns = time.time_ns()
    for _ in range(2):
        dist.all_reduce(values, group=mesh.get_group("tp"))
    dist.all_reduce(values, group=mesh.get_group("dp"))
    dist.all_gather([torch.ones(16) for _ in range(4)], values)
    ended_ns = time.time_ns()
    entries, about = parsed(_text(_dump()()))
    own_entries = [entry for entry in entries if begun_ns <= entry["time_created_ns"] < ended_ns]
    ranks = _ranks_by_name()
    collectives = [
        (entry["profiling_name"], ranks[entry["process_group"][0]], entry["collective_seq_id"])
        for entry in own_entries
    ]
    # The same entries with durations, as with NCCL.
    timed = json.dumps(
        {
            **about,
            "entries": [{**entry, "retired": True, "duration_ms": 1.0} for entry in own_entries],
        }
    )
    groups, again = GroupBuffer(every=1), GroupBuffer(every=1)
    real, with_durations = (
        FlightRecorder(dump, _ranks_by_name, {}) for dump in (_dump(), lambda: timed)
    )
    for found, rows in ((real, groups), (with_durations, again)):
        found.step_ended(3, begun_ns, ended_ns)
        while not found.is_over and found.has_unread:
            found._next_poll_s = 0.0
            found.poll(rows)
    taken = again.take()
    sys.stdout.write(json.dumps({
        "rank": dist.get_rank(),
        "collectives": collectives,
        "has_rows": groups.has_rows,
        "is_over": real.is_over,
        "groups": [(group.axis, group.ranks) for group in taken.groups] if taken else [],
        "num_rows": taken.num_rows if taken else 0,
        "mesh_ranks": [group_ranks(mesh["tp"]), group_ranks(mesh.get_group("dp"))],
    }) + "\n")  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


def _text(dump: bytes | str) -> str:
    return dump.decode() if isinstance(dump, bytes) else dump


if __name__ == "__main__":
    main()
