"""Made jobs, window after window, as a consumer would diagnose them."""

from app.diagnosis.case import Case
from app.diagnosis.job_history import History
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.synth.job import SimulatedJob
from app.trace.window import Window

WINDOW_STEPS = 8


def made_window(made: SimulatedJob, first: int, num_steps: int = WINDOW_STEPS) -> Window:
    """A closed window of successive steps."""
    steps = tuple(range(first, first + num_steps))
    return Window(made.job, 1, first, steps, made.make(steps), state="complete")


def case_of(window: Window, history: History | None = None) -> Case:
    """What detectors see."""
    replay = prepare(window)
    return Case(replay, analyse_replay(replay), history or History())


def cases(made: SimulatedJob, num_steps: int, window_steps: int = WINDOW_STEPS) -> list[Case]:
    """Successive windows, each with the history of those before."""
    found, history = [], History()
    for first in range(0, num_steps, window_steps):
        found.append(case_of(made_window(made, first, window_steps), history))
        history = history.extended(found[-1].new_history)
    return found
