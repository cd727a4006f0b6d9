"""What do torch.profiler's files contain, one per rank, with annotations of operations or without?

Read `trace_file.py` first, which reads a file for all uses. `kineto_import.py` makes operations of
annotations and collectives; `profile.py` gives a plain profile's steps, GPU intervals and
collectives.
Imported by: diagnosis, trace.
"""
