"""Run a Paceline command after patches: `launch MODULE:FUNCTION[:ARG]... -- COMMAND ...`.

So a process can die between any two deeds, or break a promise on purpose, while production code
has no hook for either.
"""

import importlib
import sys
from collections.abc import Sequence

from app.cli import main


def command(patches: Sequence[str], *words: str) -> list[str]:
    """Command line of a Paceline process with these patches."""
    if not patches:
        return [sys.executable, "-m", "app.cli", *words]
    return [sys.executable, "-m", "app.cli.bench.faults.launch", *patches, "--", *words]


def apply(patch: str) -> None:
    """Call the function that a patch names with its arguments."""
    module, function, *arguments = patch.split(":")
    getattr(importlib.import_module(module), function)(*arguments)


if __name__ == "__main__":
    end = sys.argv.index("--")
    for patch in sys.argv[1:end]:
        apply(patch)
    sys.argv = ["paceline", *sys.argv[end + 1 :]]
    main()
