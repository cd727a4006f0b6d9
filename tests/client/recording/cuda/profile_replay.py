"""Profiles of real training runs, replayed on the fake GPU under the recorder.

A profile gives the launch time, stream and duration of each kernel. The fake computes when kernels
start, how long collectives wait, and what our events therefore measure. The waits between streams
are not in the profiles; they follow the source of PyTorch 2.11 for DDP, FSDP2 and 1F1B, and so do
the places where our hooks are called.
"""

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline_client.integrations.computing import begin_wait, current_computation

from tests.client.recording.cuda.fake_cuda import Clock, Occurrence, World
from tests.client.recording.cuda.fake_ranks import Rank
from tests.client.recording.cuda.gpu_profile import COMPUTE, Launch, Profile

US = 1_000
# Event times exceed kernel times by 0.015 % of 18.7 ms (gpu/README.md).
EVENT_US = 2.8
FORWARD = ("aten::linear", "aten::relu", "Burn", "aten::sub", "aten::pow", "aten::mean")


class Script:
    """The host's actions on one rank, in order: (time, number, call of a `Player`)."""

    def __init__(self):
        self.calls: list[tuple[float, int, str, tuple[Any, ...]]] = []

    def at(self, host_us, name, *args):
        self.calls.append((host_us, len(self.calls), name, args))


class Player:
    """Plays a script on a rank of the fake GPU."""

    def __init__(self, rank, occurrences):
        self.rank = rank
        self.occurrences = occurrences
        self.streams = {COMPUTE: rank.cuda.current}
        self.computing = current_computation(rank.recorder)
        self.begun: dict[Any, Any] = {}
        self.step: Any = None
        self.kernels: list[tuple[Launch, Any]] = []

    def stream(self, number):
        if number not in self.streams:
            self.streams[number] = self.rank.cuda.Stream()
        return self.streams[number]

    def launch(self, launch, key):
        stream = self.stream(launch.stream)
        if launch.is_collective:
            item = self.rank.cuda.collective(self.occurrences[key], stream)
        elif launch.name.startswith("Mem"):
            item = self.rank.cuda.copy(round(launch.duration_us * US), stream)
        else:
            item = self.rank.cuda.work(round(launch.duration_us * US), stream)
        self.kernels.append((launch, item))

    def wait(self, stream, on):
        self.stream(stream).wait_stream(self.stream(on))

    def enter(self, number):
        self.step = self.rank.recorder.step(number)
        self.step.__enter__()

    def leave(self):
        self.step.__exit__(None, None, None)

    def compute(self, optype, microbatch=-1, chunk=-1):
        self.computing.begin(optype, microbatch, chunk)

    def computed(self):
        self.computing.end()

    def begin(self, key, optype, stream=COMPUTE, microbatch=-1, chunk=-1):
        with self.rank.cuda.stream(self.stream(stream)):
            self.begun[key] = self.rank.recorder.begin(optype, microbatch=microbatch, chunk=chunk)
        if not optype.endswith("-recv"):
            self.computing.may_wait()

    def end(self, key, stream=COMPUTE):
        with self.rank.cuda.stream(self.stream(stream)):
            self.rank.recorder.end(self.begun[key])

    def begin_wait(self, key, until):
        self.begun[key] = begin_wait(self.rank.recorder, self.begun.get(until))

    def end_wait(self, key, until, at_once):
        if self.begun[key] is not None:
            self.begun[key].end_with(self.begun[until], at_once=at_once)


def within(spans, start_us, end_us):
    return [span for span in spans if start_us <= span.start_us < end_us]


def step_bounds(profile):
    """Begin of each step on the host, and the end of the last."""
    ends = [span.end_us for span in profile.named("Optimizer.zero_grad")]
    return [profile.launches[0].host_us - 1e3, *ends]


def optimizers(profile, script):
    for number, span in enumerate(profile.named("Optimizer.step")):
        # Our hooks run within the annotation.
        script.at(span.start_us + 0.1, "begin", ("optimizer", number), "optimizer")
        script.at(span.end_us - 0.1, "end", ("optimizer", number))


def launches(profile, script, wait_for_compute=(16, 20)):
    """Launch every kernel; collectives of the given streams wait for earlier computations."""
    counts: dict[str, int] = defaultdict(int)
    for launch in profile.launches:
        key = None
        if launch.is_collective:
            kind = launch.name[14:].split("(")[0]
            key = (kind, counts[kind])
            counts[kind] += 1
            if launch.stream in wait_for_compute:
                script.at(launch.host_us - 0.2, "wait", launch.stream, COMPUTE)
        script.at(launch.host_us, "launch", launch, key)


def ddp_script(profile):
    script = Script()
    optimizers(profile, script)
    launches(profile, script)
    bounds = step_bounds(profile)
    for step, (start_us, end_us) in enumerate(pairwise(bounds)):
        script.at(start_us, "enter", step)
        [forward] = within(profile.named("DistributedDataParallel.forward"), start_us, end_us)
        script.at(forward.start_us - 0.1, "compute", "forward-compute")
        script.at(forward.end_us + 0.1, "computed")
        nodes = within(profile.named("autograd::engine::evaluate"), start_us, end_us)
        # The hook of the output's gradient, called with the first layer's node.
        first = next(node for node in nodes if node.name.endswith("BurnBackward"))
        script.at(first.start_us - 0.1, "compute", "backward-compute")
        reduces = within(profile.named("c10d::allreduce_"), start_us, end_us)
        divides = within(profile.named("aten::div_"), start_us, end_us)
        for number, reduce in enumerate(reduces):
            divide = max(each for each in divides if each.start_us < reduce.start_us)
            key = ("bucket", step, number)
            script.at(divide.start_us - 0.1, "begin", key, "grads-reduce-scatter")
            # On the future's stream, which waits for NCCL's stream.
            after = 1000 + number
            script.at(reduce.end_us + 0.1, "wait", after, 16)
            script.at(reduce.end_us + 0.2, "end", key, after)
        over_us = max(node.end_us for node in nodes)
        last = ("bucket", step, len(reduces) - 1)
        script.at(over_us + 0.1, "computed")
        script.at(over_us + 0.2, "begin_wait", ("last", step), last)
        script.at(over_us + 0.2, "end_wait", ("last", step), last, True)
        script.at(over_us + 0.3, "wait", COMPUTE, 16)
        script.at(end_us - 0.1, "leave")
    return script


COPY_IN, GATHER, SCATTER = 17, 21, 25


def fsdp2_script(profile):
    script = Script()
    optimizers(profile, script)
    launches(profile, script, wait_for_compute=())
    bounds = step_bounds(profile)
    for step, (start_us, end_us) in enumerate(pairwise(bounds)):
        script.at(start_us, "enter", step)
        spans = within(profile.host, start_us, end_us)
        fsdp = [span for span in spans if span.name.startswith("FSDP::")]
        backward_us = min(span.start_us for span in fsdp if span.name.startswith("FSDP::pre_back"))
        num_scattered = 0
        awaited = None  # the stream of the copy-out that the next gathers wait for
        for span in fsdp:
            layer = (found := re.search(r"\((\d+)\)", span.name)) and int(found[1])
            what = span.name[6:].split(" ")[0]
            is_forward = span.start_us < backward_us
            gather = ("gather", step, layer, is_forward)
            if what == "root_pre_forward":
                script.at(span.start_us + 1, "wait", COPY_IN, COMPUTE)
                script.at(span.start_us + 1, "wait", GATHER, COMPUTE)
                script.at(span.end_us + 0.1, "compute", "forward-compute")
            elif what == "all_gather":
                launch_us = next(
                    each.start_us for each in within(spans, span.start_us, span.end_us)
                    if each.name.startswith("nccl:")
                )  # fmt: skip
                script.at(launch_us - 0.3, "wait", GATHER, COPY_IN)
                script.at(launch_us - 0.2, "begin", gather, "params-all-gather", GATHER)
                script.at(span.end_us - 0.1, "end", gather, GATHER)
            elif what == "all_gather_copy_out":
                key = ("unshard", *gather[1:])
                script.at(span.start_us - 0.3, "begin_wait", key, gather)
                if awaited is not None:
                    script.at(span.start_us - 0.2, "wait", COPY_IN, awaited)
                    script.at(span.start_us - 0.2, "wait", GATHER, awaited)
                script.at(span.start_us + 0.1, "wait", COMPUTE, GATHER)
                script.at(span.end_us + 0.2, "end_wait", key, gather, True)
                if not is_forward:
                    script.at(span.end_us + 0.1, "wait", COPY_IN, COMPUTE)
                    script.at(span.end_us + 0.1, "wait", GATHER, COMPUTE)
                awaited = COMPUTE if is_forward else None
            elif what == "post_forward" and layer == 7:
                script.at(span.end_us + 0.1, "computed")
            elif what == "pre_backward" and layer == 7:
                script.at(span.end_us + 0.1, "compute", "backward-compute")
            elif what == "post_backward_reduce":
                before, this = (("scatter", step, num_scattered + each) for each in (-1, 0))
                launch_us = next(
                    each.start_us for each in within(spans, span.start_us, span.end_us)
                    if each.name.startswith("nccl:")
                )  # fmt: skip
                if num_scattered:
                    script.at(span.start_us + 0.1, "begin_wait", ("reduced", *this), before)
                    script.at(span.start_us + 0.2, "wait", COMPUTE, SCATTER)
                    script.at(span.start_us + 0.3, "end_wait", ("reduced", *this), before, False)
                script.at(launch_us - 0.3, "wait", SCATTER, COMPUTE)
                script.at(launch_us - 0.2, "begin", this, "grads-reduce-scatter", SCATTER)
                script.at(span.end_us - 0.2, "end", this, SCATTER)
                num_scattered += 1
            elif what == "root_post_backward_callback":
                last = ("scatter", step, num_scattered)
                script.at(span.end_us + 0.1, "begin_wait", ("end", step), last)
                script.at(span.end_us + 0.2, "wait", COMPUTE, SCATTER)
                script.at(span.end_us + 0.3, "end_wait", ("end", step), last, False)
                script.at(span.end_us + 0.4, "computed")
        script.at(end_us - 0.1, "leave")
    return script


def pipe_script(profile):
    """1F1B of two stages; the posts are in the order of `Schedule1F1B`."""
    script = Script()
    optimizers(profile, script)
    launches(profile, script)
    bounds = step_bounds(profile)
    is_first = not profile.named("aten::sub")
    for step, (start_us, end_us) in enumerate(pairwise(bounds)):
        script.at(start_us, "enter", step)
        doing, last_us, num_posted = "", start_us, 0
        num_computed = {"forward-compute": 0, "backward-compute": 0}
        spans = within(profile.top_level(), start_us, end_us)
        num_posts = sum(span.name == "nccl:coalesced" for span in spans)
        for span in spans:
            does = _of_pipe(span.name)
            if does in ("", doing):
                last_us = span.end_us if does else last_us
                continue
            if doing in ("forward-compute", "backward-compute"):
                script.at(last_us + 0.1, "computed")
            if does in ("forward-compute", "backward-compute"):
                if (("sent", step, 0)) in _open(script):
                    script.at(span.start_us - 0.2, "end", ("sent", step, 0))
                script.at(span.start_us - 0.1, "compute", does, num_computed[does], 0)
                num_computed[does] += 1
            if does == "post":
                _post(script, span, step, num_posted, num_posts, is_first)
                num_posted, does = num_posted + 1, ""
            doing, last_us = does, span.end_us
        reduces = within(profile.named("c10d::allreduce_"), start_us, end_us)
        if not is_first:  # the last send is waited for at the end of the schedule
            script.at(reduces[0].start_us - 0.3, "wait", COMPUTE, 20)
            script.at(reduces[0].start_us - 0.2, "end", ("sent", step, num_posts - 1))
        gradients = ("grads-reduce-scatter", COMPUTE, -1, 0)
        script.at(reduces[0].start_us - 0.1, "begin", ("grads", step), *gradients)
        script.at(reduces[-1].end_us + 0.1, "end", ("grads", step))
        script.at(end_us - 0.1, "leave")
    return script


def _of_pipe(name):
    if name in FORWARD:
        return "forward-compute"
    if name.startswith("autograd::engine") or name == "aten::ones_like":
        return "backward-compute"
    if name == "nccl:coalesced":
        return "post"
    return "other" if name.startswith(("c10d::allreduce_", "Optimizer")) else ""


def _open(script):
    """Sends begun and not ended."""
    found: set[tuple[Any, ...]] = set()
    for _, _, name, args in script.calls:
        if name in ("begin", "end") and args[0][0] == "sent":
            (found.add if name == "begin" else found.discard)(args[0])
    return found


def _post(script, span, step, number, num_posts, is_first):
    send, receive = ("forward", "backward") if is_first else ("backward", "forward")
    alone = 0 if is_first else num_posts - 1  # the post that is a send without a receive
    has_receive, has_send = number != alone, number != num_posts - 1 - alone
    sent, received = ("sent", step, number), ("received", step, number)
    # The first stage sends one forward for each earlier post, and receives one less.
    sends, receives = (number, number - 1) if is_first else (number - 1, number)
    if has_send:
        script.at(span.start_us - 0.4, "begin", sent, f"{send}-send", COMPUTE, sends, 0)
    if has_receive:
        receiving = (received, f"{receive}-recv", COMPUTE, receives, 0)
        script.at(span.end_us + 0.1, "begin", *receiving)
        script.at(span.end_us + 0.2, "wait", COMPUTE, 20)
        if has_send:
            script.at(span.end_us + 0.3, "end", sent)
        script.at(span.end_us + 0.4, "end", received)


SCRIPTS = {"ddp": ddp_script, "fsdp2": fsdp2_script, "pipe": pipe_script}


def group_of(mode, kind, rank):
    """Member ranks of a collective; in the pipeline, two stages or two replicas."""
    if mode != "pipe":
        return (0, 1, 2, 3)
    return (rank % 2, rank % 2 + 2) if kind == "SendRecv" else (rank // 2 * 2, rank // 2 * 2 + 1)


def replayed(mode: str, folder: Path, *, holds: bool, host_share: float = 1.0):
    """The ranks with the operations recorded in the profile's three steps.

    `host_share` scales the host's time under the profiler to its time without one.
    """
    profiles = [
        Profile(folder / f"nccl-{mode}-slow-on-rank{rank}.pt.trace.json.gz") for rank in range(4)
    ]
    origin_us = min(profile.launches[0].host_us for profile in profiles) - 1e4
    world = World(Clock())
    players = []
    occurrences: dict[Any, Occurrence] = {}
    stays_us: dict[Any, list[float]] = defaultdict(list)
    for rank, profile in enumerate(profiles):
        counts: dict[str, int] = defaultdict(int)
        for launch in profile.launches:
            if launch.is_collective:
                kind = launch.name[14:].split("(")[0]
                key = (group_of(mode, kind, rank), kind, counts[kind])
                counts[kind] += 1
                stays_us[key].append(launch.duration_us)
    for key, stays in stays_us.items():
        # All members of a collective end together: the time of the last to start is the transfer.
        transfer_ns = round(min(stays) * US)
        occurrences[key] = Occurrence(len(key[0]), transfer_ns, holds=key[1] != "SendRecv")
    calls = []
    for rank, profile in enumerate(profiles):
        of_rank = {key[1:]: occurrence for key, occurrence in occurrences.items() if rank in key[0]}
        gaps_us = (profile.gap_us(), profile.gap_before_nccl_us(), EVENT_US)
        gaps_ns = tuple(round(gap_us * US) for gap_us in gaps_us)
        player = Player(Rank(world, holds=holds, gaps_ns=gaps_ns), of_rank)
        players.append(player)
        for host_us, number, name, args in SCRIPTS[mode](profile).calls:
            calls.append(
                ((host_us - origin_us) * host_share, rank, number, getattr(player, name), args)
            )
    for host_us, _, _, call, args in sorted(calls, key=lambda each: each[:3]):
        world.clock.at_ns = round(host_us * US)
        call(*args)
    world.clock.at_ns += 10**9
    return [player.rank for player in players], players
