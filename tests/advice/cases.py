"""Windows with their replay and result, as fixes are given them."""

from app.advice.facts import Facts
from app.advice.fix import AdviceCase, Fix, NotOffered
from app.engine.replays import prepare
from app.monitor import advice_case
from app.synth.job import SimulatedJob
from app.trace.window import Window

NUM_STEPS = 16


def case_of(source: SimulatedJob | Window, facts: Facts | None = None) -> AdviceCase:
    """The case of a window, or of a simulated job's first steps."""
    window = source if isinstance(source, Window) else source.record(range(NUM_STEPS)).window()
    return advice_case(prepare(window), facts or Facts())


def fix_of(found: Fix | NotOffered) -> Fix:
    """The fix, which is offered."""
    assert isinstance(found, Fix), found
    return found


def refusal_of(found: Fix | NotOffered) -> NotOffered:
    """Why the fix is not offered."""
    assert isinstance(found, NotOffered), found
    return found


def simulated_step_s(job: SimulatedJob) -> float:
    """Seconds: the mean simulated step of other steps, so of other noise."""
    window = job.record(range(NUM_STEPS, 2 * NUM_STEPS)).window()
    return float(prepare(window).simulated_s.mean())
