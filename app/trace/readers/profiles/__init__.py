"""What do plain torch.profiler files contain, one per rank, without annotations?

Read `profile.py` first: `read` gives one rank's steps, GPU intervals and collectives. Annotated
files: `readers.kineto`.
Imported by: diagnosis.
"""
