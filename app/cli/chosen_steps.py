"""The steps that a person named on the command line, and no others: 3,5-9."""

from dataclasses import replace

from app.errors import InvalidRequest
from app.trace.named_steps import chosen
from app.trace.window import Window


def only(window: Window, named: str) -> Window:
    """The window with the named steps alone; of those that are not complete, the reasons.

    Raises:
        InvalidRequest: the text names no steps, or none that can be analysed.
    """
    reasons = {skip.step: skip for skip in window.skipped}
    steps = chosen(named, sorted([*window.steps, *reasons]))
    complete = [step for step in steps if step not in reasons]
    if not complete:
        step = steps[0]
        raise InvalidRequest(f"--steps: step {step} cannot be analysed: {reasons[step].reason}")
    skipped = tuple(reasons[step] for step in steps if step in reasons)
    return replace(window.only(complete), skipped=skipped)
