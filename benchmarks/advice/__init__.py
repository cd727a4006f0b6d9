"""Predicted against achieved gain of each fix.

Start with `trial.py`: a job, the fix that is asked for, and the job with the fix really applied.
`single_fixes.py`, `pipeline_fixes.py` and `fix_sets.py` make trials, `command.py` runs them.
"""

from benchmarks.advice.command import main

__all__ = ["main"]
