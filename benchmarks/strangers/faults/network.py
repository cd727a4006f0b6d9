"""Faults of the network: cards of workers and hosts, links between two workers."""

from collections.abc import Callable

import numpy as np

from benchmarks.strangers.faults.compute import any_worker, chronic, log_uniform, truth_of
from benchmarks.strangers.faults.fault import (
    Course,
    Draw,
    Fault,
    JobUnderway,
    Workers,
    come_and_go,
    since,
)
from benchmarks.strangers.graph import P2P
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations

LINK = frozenset({"slow-link"})
ANY_LINK = frozenset({"slow-link", "flapping-link"})
FLAPPING = frozenset({"flapping-link"})
DrawCourse = Callable[[int, np.random.Generator], Course]


def slow_transfers(
    job: JobUnderway, workers: Workers, factor: float, course: Course, *, host: int | None = None
) -> Callable[[Durations, Extras], None]:
    """Makes all transfers in which one of the workers takes part that much longer.

    With `host` only those that leave the host.
    """

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        graph = job.graph
        strength = 1 + (factor - 1) * course.strength[:, None]
        for unit in np.unique(graph.unit_of[graph.is_communication]).tolist():
            members = graph.members(unit)
            stages = graph.stage[members].tolist()
            if len(members) == 1 and not graph.is_synced[unit]:
                continue
            for lanes in _lanes(job, unit, stages, workers, host):
                for op in members.tolist():
                    durations.own[:, op, lanes] *= strength

    return change


def _lanes(
    job: JobUnderway, unit: int, stages: list[int], workers: Workers, host: int | None
) -> list[list[int]]:
    """Lists of dp ranks whose transfer of a unit is slow."""
    every = list(range(job.shape.dp))
    if job.graph.is_synced[unit]:
        met = [(dp_rank, stage) for dp_rank in every for stage in stages]
        return [every] if _is_slow(job, met, workers, host) else []
    return [[d] for d in every if _is_slow(job, [(d, stage) for stage in stages], workers, host)]


def _is_slow(
    job: JobUnderway, met: list[tuple[int, int]], workers: Workers, host: int | None
) -> bool:
    if workers.isdisjoint(met):
        return False
    return host is None or any(job.shape.host(*each) != host for each in met)


def card_factor(job: JobUnderway) -> float:
    """How many times as long transfers take, so that the step loses some 3 to 60 %."""
    shape, base = job.shape, job.base
    step_s = (shape.microbatches + shape.pp - 1) * base.forward_s * (1 + base.backward_ratio)
    used_s = base.gather_s + base.reduce_s if shape.dp > 1 else 0.0
    if shape.pp > 1:
        used_s += 2 * shape.microbatches * shape.chunks * base.transfer_s
    lost_s = log_uniform(job.rng, 0.05, 1.2) * step_s
    return 1 + max(lost_s / used_s, 0.5)


def nic(kind: str, drawn_course: DrawCourse, causes: frozenset[str]) -> Draw:
    """Draws a worker with a slow network card: all that it sends and receives takes longer."""

    def draw(job: JobUnderway) -> Fault:
        place = any_worker(job)
        worker = frozenset({place})
        factor, course = card_factor(job), drawn_course(job.num_steps, job.rng)
        also: tuple[Workers, ...] = ()
        shape = job.shape
        if shape.dp == 1 and shape.pp > 1 and place[1] in (0, shape.pp - 1):
            # Its only link: card and link are the same.
            also = (frozenset({place, (0, 1 if place[1] == 0 else shape.pp - 2)}),)
        truth = truth_of(
            kind,
            causes,
            worker,
            course,
            area="network",
            also=also,
            # One group of collectives, or one link: there is no other to compare it with.
            may_abstain=shape.pp == 1 or (shape.dp == 1 and shape.pp == 2),
        )
        return Fault(truth, slow_transfers(job, worker, factor, course), f"{factor:.1f}x")

    return draw


slow_nic = nic("slow-nic", chronic, LINK)
slow_nic_since = nic("slow-nic-since", since, LINK)
flapping_nic = nic("flapping-nic", come_and_go, ANY_LINK)


def link(
    kind: str,
    drawn_course: DrawCourse,
    causes: frozenset[str],
    drawn_factor: Callable[[JobUnderway], float] | None = None,
) -> Draw:
    """Draws a slow path between two neighbouring stages of one replica."""

    def draw(job: JobUnderway) -> Fault:
        dp_rank = int(job.rng.integers(job.shape.dp))
        stage = int(job.rng.integers(job.shape.pp - 1))
        pair = frozenset({(dp_rank, stage), (dp_rank, stage + 1)})
        factor = (drawn_factor or link_factor)(job)
        course = drawn_course(job.num_steps, job.rng)

        def change(durations: Durations, extras: Extras) -> None:
            del extras
            for op in pair_ops(job, stage):
                durations.own[:, op, dp_rank] *= 1 + (factor - 1) * course.strength

        alone = job.shape.dp == 1
        # With dp = 1 no collective shows that a card at the ends of the pipeline is healthy.
        ends = tuple(frozenset({each}) for each in pair if each[1] in (0, job.shape.pp - 1))
        truth = truth_of(
            kind,
            causes,
            pair,
            course,
            area="network",
            also=ends if alone else (),
            may_abstain=alone and job.shape.pp == 2 and course.onset is None,
        )
        return Fault(truth, change, f"{factor:.1f}x, stages {stage} and {stage + 1}")

    return draw


def pair_ops(job: JobUnderway, stage: int) -> list[int]:
    """Operations of transfers between this stage and the next one."""
    graph = job.graph
    found = []
    for unit in np.unique(graph.unit_of[graph.of(*P2P)]).tolist():
        members = graph.members(unit)
        if sorted(graph.stage[members].tolist()) == [stage, stage + 1]:
            found += members.tolist()
    return found


def link_factor(job: JobUnderway) -> float:
    """As `card_factor`, for transfers between stages alone."""
    base = job.base
    lost_s = log_uniform(job.rng, 0.1, 2.5) * base.forward_s * (1 + base.backward_ratio)
    return 1 + lost_s / (2 * base.transfer_s)


def very_slow_factor(job: JobUnderway) -> float:
    """10 to 50 times as long, as where a link has fallen back to another network."""
    return log_uniform(job.rng, 10.0, 50.0)


slow_link = link("slow-link", chronic, LINK)
slow_link_since = link("slow-link-since", since, LINK)
very_slow_link = link("very-slow-link", chronic, LINK, very_slow_factor)
flapping_link = link("flapping-link", come_and_go, ANY_LINK)


def host_nic(kind: str) -> Draw:
    """Draws a host whose card is slow: all transfers of its workers that leave the host."""

    def draw(job: JobUnderway) -> Fault:
        shape = job.shape
        host = int(job.rng.integers(shape.num_hosts))
        workers = shape.workers_of_host(host)
        factor, course = card_factor(job), chronic(job.num_steps, job.rng)
        # At the ends of the pipeline the other side of all its links looks the same.
        beside = frozenset(
            (d, p + side)
            for d, p in workers
            for side in (-1, 1)
            if 0 <= p + side < shape.pp and (d, p + side) not in workers
        )
        is_at_end = shape.pp > 1 and workers == frozenset(
            (d, p) for p in {p for _, p in workers} for d in range(shape.dp)
        )
        also = (workers | beside, beside) if is_at_end and len(beside) <= shape.dp else ()
        truth = truth_of(
            kind,
            LINK,
            workers,
            course,
            area="network",
            also=also,
            # All transfers of the job are slow, always.
            may_abstain=is_at_end and shape.pp == 2,
        )
        change = slow_transfers(job, workers, factor, course, host=host)
        return Fault(truth, change, f"{factor:.1f}x, {len(workers)} workers")

    return draw
