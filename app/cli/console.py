"""Where progress and remarks go, so that standard output is the result alone."""

from rich.console import Console


def notes() -> Console:
    """A console on standard error."""
    return Console(stderr=True)
