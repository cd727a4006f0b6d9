"""How do jobs register and send their data?

Read `jobs.py` first, then `ops.py`, which takes batches of operations.
"""
