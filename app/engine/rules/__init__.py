"""Which operation waits for which, by the sections of docs/replay.md?

Each rule takes the template and gives edges (before, after) between its operations. Start with
pipeline.py; overlap.py has what runs beside the computes. Only app/engine/graph.py imports rules.
"""
