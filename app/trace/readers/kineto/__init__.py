"""What do torch.profiler's annotated files contain? Operations, by names and process groups.

Read `kineto_import.py` first. Files without annotations: `readers.profiles`.
Imported by: trace.
"""
