"""Made jobs to measure on, held in memory."""

from typing import TYPE_CHECKING

from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.trace.window import Window

USUAL = {"dp": 8, "pp": 4, "microbatches": 8, "steps": 2}


def sizes(text: str) -> dict[str, int]:
    """dp, pp, microbatches and steps from "dp=1024,pp=16"; what is left out is usual.

    Raises:
        InvalidRequest: something else is written there.
    """
    wanted = dict(USUAL)
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key not in wanted or not value.isdigit() or len(value) > 9 or int(value) < 1:
            raise InvalidRequest(f"{part!r} is not one of {', '.join(wanted)}=NUMBER")
        wanted[key] = int(value)
    return wanted


def made_window(dp: int, pp: int, microbatches: int, steps: int) -> "Window":
    """A healthy job's steps as one closed window, its rows in the order of stored windows."""
    from app.cli.made_size import refuse_too_large
    from app.synth.run import MadeJob
    from app.trace.job import Parallelism
    from app.trace.window import Window

    made = MadeJob(Parallelism(dp, pp), microbatches)
    refuse_too_large(made, steps)
    numbers = range(steps)
    return Window(made.job, 1, 0, tuple(numbers), made.make(numbers), state="complete")
