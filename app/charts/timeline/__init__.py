"""What happened within one step? Every operation as a bar, the critical path, and waiting.

Read `timeline.py` first.
Imported by: api.
"""
