"""What keeps the database small?

Read `thinning.py` first (old windows); `dead_rows.py` frees the space of deleted rows.
Imported by: cli, consumer, store.
"""
