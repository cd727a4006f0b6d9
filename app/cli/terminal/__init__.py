"""How is a result shown in a terminal?

Read `result` first. Progress and remarks go to standard error, so that standard output is the
result alone. Commands import this package when they run, since rich is slow to load.
"""

from rich.console import Console


def stderr_console() -> Console:
    """A console on standard error."""
    return Console(stderr=True)
