from hypothesis import HealthCheck, given, settings

from app.engine.report import analyse
from app.engine.result import as_json
from app.trace.window import Window
from tests.comparison import agree
from tests.reference import Reference, dependencies, figures
from tests.strategies import windows

MANY = settings(
    max_examples=600, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
SHARES = ("m_w", "m_w_exact", "m_s", "stage_share")


def computed(window: Window) -> dict:
    """The engine's figures, named as the reference names them."""
    result = as_json(analyse(window))
    return {**result, "discrepancy": result["fidelity"]["discrepancy"]}


def is_decided(slowdown: list[list[float]]) -> bool:
    """Whether no rounding can change which single worker is the slowest."""
    ordered = sorted((each for row in slowdown for each in row), reverse=True)
    return len(ordered) == 1 or ordered[0] > ordered[1] * (1 + 1e-9)


@MANY
@given(windows())
def test_every_figure_is_the_one_of_the_definition(window):
    want, got = figures(window), computed(window)
    # Rounding is magnified where nearly nothing is lost.
    lost = abs(want["slowdown"] - 1)
    for name in SHARES:
        share = want.pop(name)
        ranking = {"m_w": "worker_slowdown_estimate", "m_w_exact": "worker_slowdown"}.get(name)
        if lost > 1e-6 and (ranking is None or is_decided(want[ranking])):
            agree(got[name], share, name, relative=1e-9, absolute=1e-12 / lost)
    agree(got, want, "", relative=1e-9)
    assert set(got["optype_slowdown"]) == set(want["optype_slowdown"])


@MANY
@given(windows(max_steps=1))
def test_random_jobs_record_the_order_that_they_ran_in(window):
    # Every replica ran in the same order, so any of them tells the same dependencies.
    job = Reference(window)
    for dp_rank in range(job.sizes.dp_size):
        mine = [op for op in job.ops if op.dp_rank == dp_rank]
        found = dependencies(mine, job.sizes)
        assert found.waits_for == job.dependencies.waits_for
        assert set(found.pairs) == set(job.dependencies.pairs)
