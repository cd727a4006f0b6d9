"""How does `paceline simulate` make the trace of a job with known faults?

Read `command.py` first. The simulation itself is `app.synth`.
Imported by: cli.
"""
