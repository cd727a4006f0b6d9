"""Runs a benchmark in this process, and catches what it prints."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from benchmarks.__main__ import main


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run_benchmark(*arguments: str) -> Finished:
    """`python -m benchmarks ...` without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            exit_code = main(arguments)
        except SystemExit as ended:
            exit_code = int(ended.code or 0)
    return Finished(exit_code, out.getvalue(), err.getvalue())
