"""Faults injected into published traces: what costs 2 % and more is to be named, nobody else.

The faults' durations are simulated again with the recorded launch delays, so that all that waits
for them moves. Each trace has findings of its own, whose culprits are no innocents here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from app.monitor import observe
from benchmarks.strangers.faults.fault import Worker, Workers, workers_of_stage
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER, P2P
from benchmarks.strangers.published import NAMES, Published
from benchmarks.strangers.scoring import culprits_of
from benchmarks.strangers.simulation import Durations, simulate

FACTORS = (1.1, 1.2, 1.3, 1.5, 1.75, 2.0)
# Transfers of the published traces take some thousandth of a step: at 1.1x to 2x they cost nothing.
# A link's transfers take (factor - 1) x this longer.
LINK_SCALE = 200.0
LEAST_COST = 0.02
CAUSES: Mapping[str, frozenset[str]] = {
    "slow-worker": frozenset({"slow-worker"}),
    "slow-stage": frozenset({"stage-imbalance"}),
    "slow-link": frozenset({"slow-link"}),
}


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault in one published trace: `place` is a worker, the first of a link, or (0, stage)."""

    trace: str
    kind: str
    place: Worker
    factor: float


@dataclass(frozen=True, slots=True)
class InjectedVerdict:
    """Whether the fault was named with exactly its culprits, and whom else findings blame."""

    injection: Injection
    cost: float
    is_named: bool
    are_culprits_exact: bool
    innocents: tuple[Worker, ...]
    sentences: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Whether the fault costs enough to be named."""
        return self.cost >= LEAST_COST


def injections(num: int | None = None) -> list[Injection]:
    """All, or so many of them that are spread evenly."""
    found = [each for name in NAMES for each in _of_trace(name)]
    if num is None or num >= len(found):
        return found
    return [found[at] for at in np.linspace(0, len(found) - 1, num).astype(int).tolist()]


def _of_trace(name: str) -> Iterator[Injection]:
    shape = _trace(name).shape
    for factor in FACTORS:
        for place in product(range(shape.dp), range(shape.pp)):
            yield Injection(name, "slow-worker", place, factor)
            if place[1] < shape.pp - 1:
                yield Injection(name, "slow-link", place, factor)
            if place[0] == 0:
                yield Injection(name, "slow-stage", place, factor)


@cache
def _trace(name: str) -> Published:
    return Published.read(name)


@cache
def _unmodified(name: str) -> tuple[float, Workers, frozenset[str]]:
    """Mean step of the trace, whom its own findings blame, and their causes."""
    trace = _trace(name)
    window, step_s = trace.simulated_again(trace.durations())
    findings = observe(window).result.findings or ()
    blamed = [culprits_of(trace.shape, finding.culprits) for finding in findings]
    return step_s, frozenset().union(*blamed), frozenset(finding.cause for finding in findings)


def judged_injection(injection: Injection) -> InjectedVerdict:
    """Inject the fault, diagnose the trace, and judge."""
    trace = _trace(injection.trace)
    usual_s, blamed_before, _ = _unmodified(injection.trace)
    durations, culprits = _injected(trace, injection)
    window, step_s = trace.simulated_again(durations)
    findings = observe(window).result.findings or ()
    named = [(finding.cause, culprits_of(trace.shape, finding.culprits)) for finding in findings]
    # A finding of the trace's own worker or stage may take in the fault that is added to it.
    of_fault = [who for cause, who in named if _is_right(injection, cause) and culprits & who]
    return InjectedVerdict(
        injection,
        round((step_s - usual_s) / step_s, 4),
        bool(of_fault),
        any(culprits <= who <= culprits | blamed_before for who in of_fault),
        tuple(sorted(frozenset().union(*(who for _, who in named)) - culprits - blamed_before)),
        tuple(finding.sentence for finding in findings),
    )


def _is_right(injection: Injection, cause: str) -> bool:
    return cause in CAUSES[injection.kind]


def _injected(trace: Published, injection: Injection) -> tuple[Durations, Workers]:
    """Durations with the fault, and its culprits."""
    durations, graph = trace.durations(), trace.graph
    (dp_rank, stage), factor = injection.place, injection.factor
    if injection.kind == "slow-link":
        for unit in np.unique(graph.unit_of[graph.of(*P2P)]).tolist():
            members = graph.members(unit)
            if set(graph.stage[members].tolist()) == {stage, stage + 1}:
                durations.own[:, members, dp_rank] *= 1 + LINK_SCALE * (factor - 1)
        return durations, frozenset({(dp_rank, stage), (dp_rank, stage + 1)})
    optypes = (FORWARD, BACKWARD, OPTIMIZER)[: 2 if injection.kind == "slow-stage" else 3]
    ops = graph.of(*optypes) & (graph.stage == stage)
    if injection.kind == "slow-stage":
        durations.own[:, ops] *= factor
        return durations, workers_of_stage(trace.shape, stage)
    durations.own[:, ops, dp_rank] *= factor
    return durations, frozenset({injection.place})


def step_error(name: str) -> float:
    """|mean step simulated again without a fault - recorded| / recorded."""
    trace = _trace(name)
    seen = trace.recorded()
    recorded_s = float((seen.end_s.max(axis=(1, 2)) - seen.start_s.min(axis=(1, 2))).mean())
    return abs(simulate(trace.graph, trace.durations()).step_s - recorded_s) / recorded_s


def injected_figures(verdicts: Sequence[InjectedVerdict]) -> dict[str, Any]:
    """Shares over the faults that cost enough; what goes wrong is listed, as nothing is secret."""
    counted = [each for each in verdicts if each.counts]
    return {
        "injected": len(verdicts),
        "counted": len(counted),
        "named": sum(each.is_named for each in counted),
        "culprits_exact": sum(each.are_culprits_exact for each in counted),
        "with_innocents": sum(bool(each.innocents) for each in counted),
        "with_innocents_below_2_percent": sum(
            bool(each.innocents) for each in verdicts if not each.counts
        ),
        "not_named": [_words(each) for each in counted if not each.is_named],
        "innocents": [_words(each) for each in verdicts if each.innocents],
    }


def missed_injected_bars(found: Mapping[str, Any]) -> list[str]:
    """Names of the bars that do not hold: all that costs enough is named, no innocent beside it."""
    missed = ["injected_named"] if found["named"] < found["counted"] else []
    return missed + (["injected_innocents"] if found["with_innocents"] else [])


def _words(verdict: InjectedVerdict) -> str:
    of = verdict.injection
    return (
        f"{of.trace} {of.kind} {of.factor}x at dp {of.place[0]}, stage {of.place[1]}, "
        f"costs {100 * verdict.cost:.1f} %: {' | '.join(verdict.sentences) or 'nothing'}"
    )
