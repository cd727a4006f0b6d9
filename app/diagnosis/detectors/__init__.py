"""Which causes are known, and how is each detected? One file per cause.

Read `slow_worker.py` first, as an example.
Imported by: diagnosis.
"""
