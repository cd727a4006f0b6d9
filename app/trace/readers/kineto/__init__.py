"""What do torch.profiler's annotated files say? Operations, by names and process groups.

Start with `kineto_import.py`. `readers.profiles` reads files without annotations, and shares
`process_groups.py`.
"""
