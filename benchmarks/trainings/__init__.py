"""Real trainings on the CPU, each with one fault or none: does Paceline name cause and rank?

Start with `cases.py`: what is trained, its fault, and the right answers.
`examples/torch_faults` is the training itself, on each rank, `served.py` the server that the ranks
push to, `judge.py` what its answers are worth, and `command.py` the command line.
"""

from benchmarks.trainings.command import main

__all__ = ["main"]
