"""Which operation waits for which, by the sections of docs/replay.md?

Read `pipeline.py` first; `overlap.py` has what runs beside the computes. A rule takes the template
and gives edges (before, after) between its operations.
Imported by: engine.
"""
