"""A tiny real training with a fault of its own; writes its losses, bit by bit, to a file.

As a program it is a zygote: it imports PyTorch once, and runs each training that it reads from its
input in a forked process, as a script of its own would run. Under torchrun it runs one training.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

STEPS = 6  # as in cases.py
PLAN = "UNHARMED_PLAN"


class Plain:
    """Stands in for a recorder: this training knows nothing of Paceline."""

    def step(self, _number: int) -> Any:
        """A block that does nothing."""
        return contextlib.nullcontext()

    op = step

    def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    """One training as the environment describes it."""
    plan = json.loads(os.environ[PLAN])
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    is_launched = "RANK" in os.environ
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    plan["is_faulty"] = rank == world - 1 and attempt == 0
    # As in a terminal: what a shell runs in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if plan["handles_sigterm"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if is_launched:
        _join(rank, world, attempt, is_gpu=plan["is_gpu"])
    recorder = _recorder(plan, rank, world)
    torch.manual_seed(7)
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model.to(device := "cuda" if plan["is_gpu"] else "cpu")
    if is_launched:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if plan["is_recorded"]:
        from paceline_client.integrations import ddp

        if is_launched:
            ddp.attach(recorder, model)
        else:
            ddp._Passes(recorder, -1, None).watch(model)
    _fault(plan, "start", recorder)
    with Path(plan["out"], f"losses-{attempt}-{rank}").open("w", buffering=1) as losses:
        for number in range(STEPS):
            with recorder.step(number):
                inputs = torch.randn(16, 8).to(device)
                loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                loss.backward()
                with recorder.op("optimizer"):
                    _descend(model)
            print(float(loss.item()).hex(), file=losses)
            if number == STEPS // 2:
                _fault(plan, "middle", recorder)
    _fault(plan, "end", recorder)
    if plan["closes"]:
        recorder.close()
    if plan["is_recorded"] and plan["closes"] and rank == 0:
        import paceline_client

        paceline_client.end_job(plan["url"], plan["token"], plan["job"], timeout_s=1.0)
    if is_launched:
        dist.destroy_process_group()


def _join(rank: int, world: int, attempt: int, *, is_gpu: bool) -> None:
    """Join the other rank.

    torchrun's store survives a restart: without a prefix, ranks would at times find the addresses
    of the attempt before.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    stores: Any = dist  # not all that it exports is typed
    store = stores.PrefixStore(f"attempt-{attempt}", stores.TCPStore(host, port, is_master=False))
    device = torch.device("cuda:0") if is_gpu else None
    backend = "nccl" if is_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=device)


def _descend(model: Any) -> None:
    """Plain descent: PyTorch's optimizers would import its compiler, for ten seconds."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def _recorder(plan: dict[str, Any], rank: int, world: int) -> Any:
    if not plan["is_recorded"]:
        return Plain()
    import paceline_client

    return paceline_client.start(
        *(plan["job"], plan["url"], plan["token"]),
        rank=rank,
        dp_rank=rank,
        stage=0,
        dp_size=world,
        pp_size=1,
        run_key=plan["key"],
        spool_dir=plan["spool"],
        flush_interval_s=0.05,
    )


def _fault(plan: dict[str, Any], place: str, recorder: Any) -> None:
    if plan["at"] != place or not plan["is_faulty"]:
        return
    time.sleep(0.1)  # let the sender's thread meet the fault, and the other rank finish its step
    match plan["fault"]:
        case "exception":
            raise RuntimeError("a fault of the training")
        case "exit-3":
            sys.exit(3)
        case "os-exit-0" | "os-exit-5":
            os._exit(int(plan["fault"][-1]))
        case "sigterm":
            _signalled(signal.SIGTERM)
        case "sigint":
            _signalled(signal.SIGINT)
        case "sigkill":
            _signalled(signal.SIGKILL)
        case "preempted":
            _signalled(signal.SIGTERM, os.getppid())
        case "abort":
            os.abort()
        case "fork":
            _in_child()
        case "workers":
            numbers: Any = torch.arange(4)
            loader: Any = torch.utils.data.DataLoader(numbers, num_workers=2)
            if sum(int(each) for each in loader) != 6:
                raise RuntimeError("the workers gave other data")
        case "subprocess":
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        case "hook":
            _break(recorder)


def _signalled(number: int, pid: int | None = None) -> None:
    os.kill(pid or os.getpid(), number)
    time.sleep(5 if pid is None else 60)
    raise RuntimeError("the signal did not end the training")


def _in_child() -> None:
    """A child that ends as children do, by a signal and by an exit."""
    for ends_by_signal in (True, False):
        pid = os.fork()
        if not pid:
            if ends_by_signal:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            os._exit(4)
        status = os.waitpid(pid, 0)[1]
        if status != (signal.SIGTERM if ends_by_signal else 4 << 8):
            raise RuntimeError(f"a child ended with {status}")


def _break(recorder: Any) -> None:
    """Break the recorder's own parts: every operation raises, on whichever thread comes first."""
    if isinstance(recorder, Plain):
        return
    recorder._buffer.items = None
    recorder._states = None


def _warm_up() -> None:
    """One step, for all that PyTorch imports only then."""
    model = torch.nn.Linear(1, 1)
    model(torch.ones(1, 1)).sum().backward()
    _descend(model)


def _zygote() -> bool:
    """Fork for each line of the input; True in the child, which is to train."""
    torch.set_num_threads(1)
    _warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        environment = json.loads(line)
        pid = os.fork()
        if not pid:
            os.environ.update(environment)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            log = os.open(environment["UNHARMED_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            return True
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, flush=True)
    return False


if __name__ == "__main__" and (sys.argv[1:] != ["--zygote"] or _zygote()):
    torch.set_num_threads(1)
    record(main)() if "RANK" in os.environ else main()
