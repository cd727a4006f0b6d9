"""`python -m benchmarks.unharmed`: the benchmark by itself, where the service is not installed."""

import typer

from benchmarks.unharmed.command import unharmed

if __name__ == "__main__":
    typer.run(unharmed)
