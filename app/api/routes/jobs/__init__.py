"""How do jobs register and send their data?

Read `jobs.py` first, then `ops.py`, which receives batches of operations.
Imported by: api.
"""
