"""How is a result shown in a terminal?

Read `result.py` first. Progress goes to standard error, so that standard output is the result
alone. Commands import this package when they run, since rich is slow to load.
Imported by: cli.
"""

from rich.console import Console


def stderr_console() -> Console:
    """A console on standard error."""
    return Console(stderr=True)
