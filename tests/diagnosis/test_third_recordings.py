"""Recordings whose right answers are known, of a generator that knows no detector and of feeds."""

from dataclasses import dataclass

import pytest

from app.monitor import observe
from app.result.window_result import WindowResult
from app.trace.readers.published import trace_files
from tests.shared_traces import SHARED_TRACES, needs_shared

SHARED = SHARED_TRACES.parent
MAX_ERROR = 0.02  # of costs and shares

pytestmark = needs_shared


@dataclass(frozen=True)
class Named:
    """A recording in which one cause is right."""

    trace: str
    cause: str
    cost: float
    places: frozenset[tuple[int | None, int | None]] = frozenset()  # dp rank and stage
    onset: int | None = None

    def __str__(self) -> str:
        return self.trace.rpartition("/")[2]


NAMED = (
    Named("third/ddp-slow-rank-0", "slow-worker", 0.210, frozenset({(0, 0)})),
    Named("third/ddp-slow-rank-1", "slow-worker", 0.212, frozenset({(1, 0)})),
    Named("third/fsdp-slow-rank-1", "slow-worker", 0.211, frozenset({(1, 0)})),
    Named("third/last-microbatch-1", "sequence-imbalance", 0.088),
    Named("third/last-microbatch-2", "sequence-imbalance", 0.366),
    Named("third/stage-optimizer-1", "stage-imbalance", 0.021, frozenset({(None, 3)}), onset=5),
    Named("third/stage-optimizer-2", "stage-imbalance", 0.147, frozenset({(None, 0)})),
    # Beside a collection of 0.2 ms there, which costs next to nothing.
    Named("public/small-programs/jax-trifle/a-jax-1-17", "slow-worker", 0.354, frozenset({(1, 0)})),
    Named("public/gc-between-steps-feed/marin-sent", "gc-pause", 0.046),
    Named("public/gc-between-steps-feed/marin-sent2", "gc-pause", 0.046),
)
# No culprit is right: what can be said, and its share of the GPU time.
FACTS = (
    ("third/uneven-counts-1", "uneven-microbatches", None),
    ("third/uneven-counts-2", "uneven-microbatches", None),
    ("third/interleaved-gap-1", "idle-between-steps", 0.024),
    ("third/interleaved-gap-2", "idle-between-steps", 0.057),
    ("third/plain-gap-1", "idle-between-steps", 0.055),
)


def result_of(trace: str) -> WindowResult:
    folder, _, name = trace.rpartition("/")
    return observe(trace_files.read(SHARED / folder / f"trace-{name}.parquet")).result


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_the_cause_its_culprits_and_its_cost_are_named(named):
    (finding,) = result_of(named.trace).findings or ()
    assert finding.cause == named.cause
    places = {(culprit.dp_rank, culprit.stage) for culprit in finding.culprits}
    if named.places:
        assert places == named.places
    assert finding.cost == pytest.approx(named.cost, abs=MAX_ERROR)
    if named.onset is not None:
        assert finding.onset_step == named.onset


@pytest.mark.parametrize(("trace", "kind", "share"), FACTS)
def test_a_fact_is_said_and_nobody_is_named(trace, kind, share):
    result = result_of(trace)
    assert not result.findings
    assert (result.imputed, result.window.missing) == (None, ())
    [observation] = result.observations or ()
    assert observation.kind == kind
    assert (observation.share is None) == (share is None)
    if share is not None:
        assert observation.share == pytest.approx(share, abs=MAX_ERROR)
