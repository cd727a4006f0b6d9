"""Trains a small transformer in a pipeline, recorded by Paceline.

torchrun --nproc-per-node 4 -m examples.torch_pipeline.train --url http://127.0.0.1:8642
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import paceline_client
import torch
import torch.distributed as dist
from paceline_client import topology
from paceline_client.integrations import torch_pipeline
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from . import batches
from .batches import Batch
from .faults import FAULTS, Fault, collect_now_and_then
from .metered import Metered
from .model import LENGTH, Pace
from .parallel import Parallel, one_stage, two_stages

PP_SIZE = 2
SCHEDULES = ("1f1b", "interleaved")
ROWS = 4  # of a step, one in each micro-batch


def main() -> None:
    """Train the runs of the command line in sequence."""
    told = _arguments()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.filterwarnings("ignore", module=r"torch\.")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (PP_SIZE, dist.get_world_size() // PP_SIZE),
                            mesh_dim_names=("pp", "dp"))  # fmt: skip
    for run in told.runs:
        said = {"run": run, **Training(mesh, told, *run.split(":")).run()}
        if dist.get_rank() == 0:
            print(json.dumps(said), flush=True)  # noqa: T201
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of Paceline; nothing is recorded without")
    parser.add_argument("--token", default=os.environ.get("PACELINE_TOKEN", ""))
    parser.add_argument("--job", default="torch-pipeline")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--runs",
        nargs="+",
        type=_run,
        default=["1f1b:none"],
        metavar="SCHEDULE:FAULT",
        help=f"{' or '.join(SCHEDULES)}, and one of {', '.join(FAULTS)}; with :off at the end it "
        "is not recorded",
    )
    return parser.parse_args()


def _run(text: str) -> str:
    """Validate the name of a run."""
    schedule, fault, *recording = text.split(":") + [""] * (":" not in text)
    if schedule not in SCHEDULES or fault not in FAULTS or recording not in ([], ["off"]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no run: give one of {', '.join(SCHEDULES)}, a colon, and one of "
            f"{', '.join(FAULTS)}"
        )
    return text


class Training:
    """One run of the job, on one of its workers."""

    def __init__(
        self,
        mesh: DeviceMesh,
        told: argparse.Namespace,
        schedule: str,
        fault: str,
        recording: str = "on",
    ) -> None:
        self._mesh = mesh
        self._fault: Fault = FAULTS[fault]
        chunks = 2 if schedule == "interleaved" else 1
        self._place = topology.from_device_mesh(mesh, vpp_size=chunks)
        self._num_steps = told.steps
        self._job = told.job + ("" if len(told.runs) == 1 else f"-{schedule}-{fault}")
        self._told = told
        self._is_recorded = recording != "off" and bool(told.url)
        self._recorder = Metered(self._started())
        torch.manual_seed(dist.get_rank())
        self._parallel = self._built(schedule)
        self._optimizer = torch.optim.AdamW(
            [each for module in self._parallel.modules for each in module.parameters()], lr=3e-3
        )

    def run(self) -> dict[str, Any]:
        """Seconds of each step but the first, and recording time in them, on this rank."""
        schedule, recorder = self._parallel.schedule, self._recorder
        if self._is_recorded:
            torch_pipeline.attach(recorder, schedule, work=self._work_of)
        took_s = []
        for step, batch in enumerate(recorder.data(self._batches())):
            dist.barrier()
            began_s = time.perf_counter()
            with recorder.step(step, kind="train" if step else "first"):
                self._train(batch)
            took_s.append(time.perf_counter() - began_s)
        self._end()
        return {"step_s": took_s[1:], "ops": recorder.num_ops, "recording_s": recorder.spent_s}

    def _started(self) -> paceline_client.Recorder:
        if not self._is_recorded:
            return paceline_client.NULL
        return paceline_client.start(
            self._job,
            self._told.url,
            self._told.token,
            topology=self._place,
            framework="PyTorch",
        )

    def _end(self) -> None:
        """End the job from one process, after all have delivered their batches."""
        self._recorder.close(timeout_s=10.0)
        dist.barrier()
        if self._is_recorded and dist.get_rank() == 0:
            with contextlib.suppress(paceline_client.Refused, paceline_client.Unreachable):
                paceline_client.end_job(self._told.url, self._told.token, self._job)

    def _built(self, schedule: str) -> Parallel:
        fault = self._fault
        pace = Pace(fault.slowdown if dist.get_rank() == fault.slow_rank else 1.0)
        if schedule == "interleaved":
            return two_stages(self._mesh, pace, ROWS)
        recorder = self._recorder if self._is_recorded else None
        found = one_stage(self._mesh, recorder, pace, fault.last_stage_layers, ROWS)
        if fault.pauses:
            found.modules[0].register_forward_pre_hook(self._maybe_collect)
        return found

    def _batches(self) -> Iterator[Batch]:
        is_uneven = self._place.dp_rank == self._fault.uneven_dp_rank
        for step in range(self._num_steps):
            self._step, self._microbatch = step, 0
            self._batch = batches.batch(step, self._place.dp_rank, ROWS, are_uneven=is_uneven)
            yield self._batch

    def _train(self, batch: Batch) -> None:
        place, parallel = self._place, self._parallel
        is_first, is_last = place.stage == 0, place.stage == place.pp_size - 1
        parallel.schedule.step(
            *([batch.inputs] if is_first else []),
            lengths=batch.lengths,
            target=batch.targets if is_last else None,
        )
        parallel.reduce_gradients(self._recorder)
        with self._recorder.op("optimizer"):
            self._optimizer.step()
            parallel.zero_gradients()

    def _work_of(self, microbatch: int) -> Mapping[str, int]:
        lengths = self._batch.lengths[microbatch].tolist()
        return {"tokens": LENGTH, "seq_len_sq": sum(each**2 for each in lengths)}

    def _maybe_collect(self, *_: Any) -> None:
        microbatch, self._microbatch = self._microbatch, self._microbatch + 1
        collect_now_and_then(self._step, dist.get_rank(), dist.get_world_size(), microbatch)


if __name__ == "__main__":
    main()
