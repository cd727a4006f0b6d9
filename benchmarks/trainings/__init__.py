"""Real trainings on the CPU, each with one fault or none: does Paceline name cause and rank?

Start with `cases.py`: what is trained, what is wrong in it, and what may be said of it.
`examples/torch_faults` is the training itself, on each rank, `served.py` the server that the ranks
push to, `judge.py` what its answers are worth, and `command.py` the command line.
"""

from benchmarks.trainings.command import main

__all__ = ["main"]
