"""What keeps the database small?

Read `thinning.py` first (old windows); `dead_rows.py` frees the space of what went, `file_size.py`
gives free pages back.
Imported by: cli, consumer, store.
"""
